"""Recorded launches, read from a file as values: a table of rows, or a bundle. `autotune.backends` replays them."""
