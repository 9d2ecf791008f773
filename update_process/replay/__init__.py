"""Replay of a backlog: its net change, found here or by Spark, applied in bulk. `pyspark` is imported only below here.

Guarantees: importing this imports nothing else. Leaves to others: everything; its modules know.
"""
