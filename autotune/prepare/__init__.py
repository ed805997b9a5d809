"""From command-line options to candidates.

build_spec  options to a checked `StudySpec`
names       knobs and engine versions by the names that people type
hub         models that the search spaces do not describe, by their ids
weights     whether they are complete here; `--fetch`
recipes     vendors' published commands, as baselines and good starts
candidates  `StudySpec` to the candidates of every engine and the baseline; what fails or does nothing, by rule
"""
