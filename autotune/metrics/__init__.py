"""Names, directions and formulas of every metric, over what a client saw of each request.

table      a row per metric: name, title, unit, direction, derivation, where it is shown
formulas   the figures that a client counts; SLOs, and the limits of ``--goodput``
records    one element per request: when it was sent, when its tokens came; latencies of these
steady     the steady state of a load
"""
