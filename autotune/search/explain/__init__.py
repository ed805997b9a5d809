"""Explain a winner: what each setting adds, what did nothing, what was learned. Hides how commands are compared."""
