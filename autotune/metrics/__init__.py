"""Names, directions and formulas of every metric, over what a client saw of each request.

formulas   every metric's name, unit, direction and formula
latencies  percentiles of latencies
records    one row per request: when it was sent, when its tokens came
"""
