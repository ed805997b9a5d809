"""Decide from the launches only: finals, verdict, shortest command. Hides the statistics of the
sequential test."""
