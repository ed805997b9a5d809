"""Names, directions and formulas of every metric, over what a client saw of each request.

formulas   every metric's name, unit, direction and formula; SLOs
records    one element per request: when it was sent, when its tokens came; latencies of these
steady     the steady state of a load
"""
