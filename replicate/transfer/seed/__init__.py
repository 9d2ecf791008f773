"""Seeding: a copy of all regions at one sequence number, made, carried and put into its place."""
