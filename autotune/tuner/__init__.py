"""Decide which configuration is launched next, launch it, and decide which one wins."""
