"""Turn command-line options into candidates.

build_spec  options to a checked `StudySpec`
names       models, knobs and engine versions by the names that people type
recipes     vendors' published commands, as baselines and good starts
candidates  `StudySpec` to the candidates of every engine and the baseline; what fails or does
            nothing, by rule; whether their weights are complete here
"""
