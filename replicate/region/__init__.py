"""Regions: what is replicated, by the kind of database."""
