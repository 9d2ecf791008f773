"""Journals as columns in an archive."""
