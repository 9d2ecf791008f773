"""Comparing two instances, row by row, at one sequence number."""
