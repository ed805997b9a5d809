"""Recorded launches as values, read from a table of rows or a bundle.

`autotune.tuner.backends` replays them.
"""
