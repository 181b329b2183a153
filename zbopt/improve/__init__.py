"""Search for a better schedule from those that are there, by local changes."""
