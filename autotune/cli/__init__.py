"""The commands: options, one call, the printed outcome.

It hides click. Public: `main.main`, the entry point of ``autotune``.
"""
