"""What a transaction changed, as it is told by SQLite."""
