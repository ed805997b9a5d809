"""From command-line options to candidates.

build_spec  options to a checked `StudySpec`
goals       objective, SLOs, weights
names       knobs and engine versions by the names that people type
hub         models that the search spaces do not describe, by their ids
weights     whether they are complete here; `--fetch`
recipes     vendors' published commands, as baselines and good starts
refusals    what is known to fail without a launch
candidates  `StudySpec` to the candidates of every engine and the baseline
no_effect   settings of a command that have no effect, by rule
"""
