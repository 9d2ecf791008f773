"""Copies of regions on their way."""
