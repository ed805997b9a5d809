"""Decide from the launches alone: finals, verdict, shortest command. Hides the statistics of the
sequential test."""
