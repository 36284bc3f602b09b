"""Runs as one page for a browser."""
