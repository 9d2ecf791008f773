"""Measuring this product on the user's own host (`replicate bench`), and what tests/benchmarks shares with that."""
