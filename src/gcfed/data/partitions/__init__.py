"""Who holds which examples: ways to divide, and how skewed they are."""
