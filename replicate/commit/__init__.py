"""Committing on a primary: a connection's session, its attached regions, and what became of a COMMIT that failed."""
