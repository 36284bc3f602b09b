"""Published files: where they come from, fetching and checking them, reading their formats."""
