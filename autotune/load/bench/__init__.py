"""``autotune bench`` and ``autotune compare``: options, results as JSON, their table, comparison of
two results."""
