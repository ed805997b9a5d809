"""Candidates, rules and readings against the engines' own argument code, without a GPU: see
`conformance`."""
