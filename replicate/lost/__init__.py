"""Transactions that no other instance has: which they are, and the file that they are written to before they go."""
