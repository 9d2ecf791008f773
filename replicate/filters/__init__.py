"""Filters: transactions of the stream given to a program, and told on in its words."""
