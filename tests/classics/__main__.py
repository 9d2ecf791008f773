"""`python -m tests.classics` prints how much of the five descriptions works."""

from tests.classics.tables import descriptions, summary

print(summary(descriptions()))
