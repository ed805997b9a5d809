"""Decide the next launch, and when to stop: `study.Study` hides the sampler, the finals and
Optuna's journal.

Only this package imports Optuna, which takes a second to load, and only in `study`, `plan`,
`sampler` and `optuna_journal`.
"""

SAMPLERS = ("gp", "nsgaii", "optuna-gp", "random", "tpe")
"""Values of ``--sampler``: our Gaussian process over the candidates, and samplers of Optuna."""
