"""Data sets by name, and people's own."""
