"""Search for the highest load at which a warm server keeps every SLO, on a real server and on the simulated node.

    judge    decides with stated odds that a load keeps or breaks the limits, or must be sent on
    search   `LoadSearch`: ask for a probe, tell its records; ends with capacity, curve and what is to be said of them

Nothing here sends anything. ``docs/load-search.md`` says what is measured, and how often the answer is right.
"""
