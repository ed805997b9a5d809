"""Errors, array types, child processes, redaction, safe files: used by every room."""
