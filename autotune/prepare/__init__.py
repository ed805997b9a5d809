"""From command-line options to candidates.

build_spec  options to a checked `StudySpec`
goals       objective, SLOs, weights
candidates  `StudySpec` to the candidates of every engine and the baseline
no_effect   settings of a command that have no effect, by rule
"""
