"""Metrics: names, directions and formulas, over the client's records of requests."""
