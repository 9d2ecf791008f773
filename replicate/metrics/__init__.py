"""Figures of the daemons: statistics, gauges, and the port where Prometheus reads them."""
