"""Replays by Spark."""
