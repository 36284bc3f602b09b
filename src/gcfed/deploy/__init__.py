"""Runs across machines, over Flower: the server's half and the clients' half in their places."""
