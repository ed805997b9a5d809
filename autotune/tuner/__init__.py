"""The next configuration to launch, and the one that wins.

It hides the search, its statistics and where trials run. From the bottom: `trial` (the value that
travels), ``study/`` (specification, rows, recommendation), ``accuracy/``, ``replay/``, ``backends/``,
``prepare/``, ``search/``, ``executors/``, `comparison`, `recommend`. `autotune.run` is the example.
"""
