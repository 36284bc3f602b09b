"""Settings: from a table of keys to a run that can start, and which run that is."""
