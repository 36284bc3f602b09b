"""A round as pure functions: trees, keys, algorithms, models, what a client and the server do."""
