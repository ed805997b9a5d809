"""Names, directions and formulas of every metric, over what a client saw of each request."""
