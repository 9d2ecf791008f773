"""The logs of the daemons, read: what happened when, how fast it went, how far it lagged."""
