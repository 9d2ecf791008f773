"""The commit door: the one way into the journal, for writers, for the Update Process and for a replay."""
