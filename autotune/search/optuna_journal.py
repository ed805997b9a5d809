"""The study as Optuna keeps it, for dashboards and for Optuna's samplers: one trial per launch, same number.

`results.jsonl` is the truth and the journal follows it: opening a study mends a torn journal, tells it
what it missed, and writes it anew where it contradicts the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.search import objective
from autotune.search.gp.encoding import Encoding
from autotune.space.candidates import CandidateSet
from autotune.study.spec import StudySpec
from autotune.trial import Launch, Role, Trial

STARTS = "starts"
"""Constraint of every trial that failed to run: violated, so that samplers learn from it."""


class Form:
    """How launches are written as Optuna's trials."""

    def __init__(self, spec: StudySpec, candidates: CandidateSet, encoding: Encoding) -> None:
        self.spec, self.candidates, self.encoding = spec, candidates, encoding
        maximise = objective.maximises(spec.objective)
        self.direction = StudyDirection.MAXIMIZE if maximise else StudyDirection.MINIMIZE
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(encoding.choices[name]) for name in encoding.names
        }

    def running(self, trial: Trial, position: int | None = None) -> FrozenTrial:
        """A trial that was begun.

        Args:
            position: the candidate for which it counts; None: the one that was asked for.
        """
        return create_trial(state=TrialState.RUNNING, **self._content(trial, position))

    def finished(self, launch: Launch, position: int | None = None) -> FrozenTrial:
        """A trial with its outcome; `position` as in `running`."""
        state, value, constraints = self.outcome(launch)
        content = self._content(launch.trial, position)
        content["user_attrs"].update(self.told(launch))
        return create_trial(state=state, value=value, constraints=constraints, **content)

    def outcome(self, launch: Launch) -> tuple[TrialState, float | None, dict[str, float]]:
        """State, value and constraints.

        A configuration that failed is PRUNED with a violated constraint: Optuna's samplers learn nothing from
        FAIL, which is what a measurement that says nothing of the configuration becomes.
        """
        if objective.broke(launch):
            return TrialState.PRUNED, None, {STARTS: 1.0}
        number = objective.achieved(self.spec, launch)
        if number is None:
            return TrialState.FAIL, None, {}
        return TrialState.COMPLETE, number, objective.violations(self.spec, launch)

    def told(self, launch: Launch) -> dict[str, float]:
        """The second goal's metric: Optuna's pruning and constraints want one objective, so it is an attribute."""
        metric = self.spec.pareto
        number = objective.value(launch, metric, self.spec.workloads[0]) if metric else None
        return {metric: number} if metric and number is not None else {}

    def _content(self, trial: Trial, position: int | None) -> dict[str, Any]:
        if position is None:
            position = self.candidates.position(trial.configuration.fingerprint)
        return {
            "params": self.encoding.params(position),
            "distributions": self.distributions,
            "user_attrs": {
                "role": trial.role.value,
                "fingerprint": trial.configuration.fingerprint,
                **({"node": trial.node} if trial.node else {}),
            },
        }


class Record:
    """The durable Optuna study beside `results.jsonl`.

    Args:
        path: the journal.
        launches: by number, the finished launches.
        fill: gives the trial of a number that is missing among the launches when the journal is written anew.
    """

    def __init__(
        self, path: Path, form: Form, launches: Mapping[int, Launch], fill: Callable[[int], Trial | None]
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._path, self._form = path, form
        # Optuna's own lock survives a kill and would be waited for; the study's lock already keeps others out.
        path.with_name(path.name + ".lock").unlink(missing_ok=True)
        _mend(path)
        if not self._load() or not self._agrees(launches):
            self._rewrite(launches, fill)
        for number, launch in sorted(launches.items()):
            if not self._study.get_trials(deepcopy=False)[number].state.is_finished():
                self.finish(launch)

    def begin(self, trial: Trial) -> None:
        """Keep a trial as running, in one write."""
        self._study.add_trial(self._form.running(trial))

    def finish(self, launch: Launch) -> None:
        """Tell a running trial's outcome."""
        state, value, constraints = self._form.outcome(launch)
        study_id = self._storage.get_study_id_from_name(self._study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, launch.trial.number)
        trial = optuna.trial.Trial(self._study, trial_id)
        told = self._study.get_trials(deepcopy=False)[launch.trial.number].constraints
        for name in constraints.keys() - told.keys():
            trial.set_constraint(name, constraints[name])
        for name, number in self._form.told(launch).items():
            trial.set_user_attr(name, number)
        self._study.tell(trial, value, state)

    def running(self) -> list[tuple[int, Role, str, str]]:
        """Number, role, fingerprint and node of the trials that were begun and not finished."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        known = [(t.number, t.user_attrs) for t in trials]
        return [(n, Role(told["role"]), told["fingerprint"], told.get("node", "")) for n, told in known]

    def _load(self) -> bool:
        try:
            self._storage = JournalStorage(JournalFileBackend(str(self._path)))
            self._study = optuna.create_study(
                storage=self._storage,
                study_name=self._form.spec.study,
                direction=self._form.direction,
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(),
            )
        except (ValueError, KeyError, TypeError, AssertionError, AttributeError):
            return False
        return self._study.direction is self._form.direction

    def _agrees(self, launches: Mapping[int, Launch]) -> bool:
        trials = self._study.get_trials(deepcopy=False)
        if any(number >= len(trials) for number in launches):
            return False
        return all(self._same(trial, launches.get(trial.number)) for trial in trials)

    def _same(self, trial: FrozenTrial, launch: Launch | None) -> bool:
        fingerprint = trial.user_attrs.get("fingerprint")
        if launch is None:
            return trial.state is TrialState.RUNNING and self._known(fingerprint)
        finished = not trial.state.is_finished() or trial.state is self._form.outcome(launch)[0]
        return finished and fingerprint == launch.trial.configuration.fingerprint

    def _known(self, fingerprint: str | None) -> bool:
        try:
            self._form.candidates.position(fingerprint or "")
        except KeyError:
            return False
        return True

    def _rewrite(self, launches: Mapping[int, Launch], fill: Callable[[int], Trial | None]) -> None:
        self._path.unlink(missing_ok=True)
        if not self._load():
            raise RuntimeError(f"Optuna cannot open a fresh journal at {self._path}")
        for number in range(max(launches, default=-1) + 1):
            missing = None if number in launches else fill(number)
            if number in launches:
                self._study.add_trial(self._form.finished(launches[number]))
            elif missing is not None:
                self._study.add_trial(self._form.running(missing))
            else:
                self._study.add_trial(create_trial(state=TrialState.FAIL))


def _mend(path: Path) -> None:
    """Cut off a torn last line: Optuna would read past it once and fail after the next append."""
    if not path.exists():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    tail = content[:end].rstrip(b"\n").rsplit(b"\n", 1)[-1]
    try:
        json.loads(tail or b"{}")
    except ValueError:
        end -= len(tail) + 1
    if end != len(content):
        with path.open("r+b") as file:
            file.truncate(end)
