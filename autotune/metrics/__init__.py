"""Names, directions and formulas of every metric, over what a client saw of each request.

formulas   every metric's name, unit, direction and formula; SLOs
derived    metrics that follow from others: per GPU, per user, and in money
records    one element per request: when it was sent, when its tokens came; latencies of these
steady     the steady state of a load
"""
