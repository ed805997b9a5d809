"""Search for the highest load at which a warm server meets every SLO, on a real server and on the
simulated node.

Nothing here sends anything. ``docs/load-search.md`` says what is measured, and how often the answer
is right.
"""
