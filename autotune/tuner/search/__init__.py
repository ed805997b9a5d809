"""Decide the next launch, and when to stop: `study.Study` hides the sampler, the finals and
Optuna's journal.

This package is the only importer of Optuna, which takes a second: only `study`, `plan`, `sampler`
and `optuna_journal` import it.
"""

SAMPLERS = ("gp", "nsgaii", "optuna-gp", "random", "tpe")
"""Values of ``--sampler``: ``gp`` is our Gaussian process over the candidates, the others are
Optuna's."""
