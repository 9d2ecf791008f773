"""Files of SQLite read by ourselves: what its own library cannot tell."""
