"""The Optuna study of a study's launches: one trial per launch, of the same number, in a journal
for dashboards.

`results.jsonl` is the truth. Whoever opens the study writes the journal anew from it; of an earlier
journal only the launches that were under way are taken, which no other file holds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import TrialState, create_trial

from autotune.base import write_atomically
from autotune.engines import Candidate, CandidateSet, Command

from ..study.spec import StudySpec
from ..trial import Launch, Role, Trial
from . import objective
from .gp.kernels import Encoding
from .plan import Step
from .sampler import STARTS


@dataclass
class _Backend(BaseJournalBackend):
    """Optuna's journal file of one writer, without locks; `path` is written to from the first
    `save` on."""

    path: Path
    lines: list[str] = field(default_factory=list)
    saved: bool = False

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Read logs as Optuna defines."""
        return map(json.loads, self.lines[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append logs as Optuna defines."""
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        self.lines += lines
        if self.saved:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))

    def save(self) -> None:
        """Write all lines over the existing file."""
        write_atomically(self.path, "".join(f"{line}\n" for line in self.lines))
        self.saved = True


def interrupted(path: Path, candidates: CandidateSet) -> dict[int, Step]:
    """Read the unfinished trials of an earlier journal, by number; unreadable lines are skipped."""
    try:
        # Drop a torn line: the text after the last line break.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        if not all(isinstance(json.loads(line), dict) for line in lines):
            return {}
        storage = JournalStorage(_Backend(path, lines))
        study = optuna.load_study(study_name=None, storage=storage)
        trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    except (ValueError, KeyError, AssertionError):
        return {}
    positions = {
        candidate.fingerprint: position for position, candidate in enumerate(candidates.items)
    }
    return {
        trial.number: Step(
            Role(attrs["role"]), positions[attrs["fingerprint"]], attrs.get("node", "")
        )
        for trial in trials
        # The fingerprint is written last: without it a trial was never handed out.
        if (attrs := trial.user_attrs).get("fingerprint") in positions
    }


class Journal:
    """Optuna study driven by ask and tell, in a file from `save` on; `command_of` starts a
    candidate's server."""

    def __init__(
        self,
        path: Path,
        spec: StudySpec,
        candidates: CandidateSet,
        command_of: Callable[[Candidate], Command],
        encoding: Encoding,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec = spec
        self._candidates = candidates
        self._command_of = command_of
        self._encoding = encoding
        self._backend = _Backend(path)
        storage = JournalStorage(self._backend)
        self._study = optuna.create_study(
            study_name=spec.study,
            storage=storage,
            direction="maximize" if objective.maximises(spec.objective) else "minimize",
        )
        # Name the objective for optuna-dashboard, whose own function for that is not installed.
        study_id = storage.get_study_id_from_name(spec.study)
        storage.set_study_system_attr(study_id, "dashboard:objective_names", [spec.objective])
        self._asked: dict[int, optuna.Trial] = {}
        self._begun: Counter[str] = Counter()

    def add(self, launch: Launch | None) -> None:
        """Add the next trial as finished; None for a number without a launch."""
        if launch is None:
            self._study.add_trial(create_trial(state=TrialState.FAIL))
            return
        state, value, constraints, second = _outcome(self._spec, launch)
        fingerprint = launch.trial.configuration.fingerprint
        self._begun[fingerprint] += 1
        params = self._encoding.params(self._candidates.position(fingerprint))
        trial = create_trial(
            state=state,
            value=value,
            params=params,
            distributions={
                name: CategoricalDistribution(self._encoding.values[name]) for name in params
            },
            constraints=dict(constraints),
            user_attrs={**second, **_attributes(launch.trial)},
        )
        self._study.add_trial(trial)

    def save(self) -> None:
        """Write the trials over an earlier journal; later changes are written immediately."""
        self._backend.save()

    def ask(self, step: Step) -> Trial:
        """Start the trial of a step under the next number; an interrupted one is launched again."""
        params = self._encoding.params(step.position)
        # All its values are fixed: Optuna samples nothing.
        self._study.enqueue_trial(params)
        asked = self._study.ask(
            {name: CategoricalDistribution(self._encoding.values[name]) for name in params}
        )
        candidate = self._candidates.items[step.position]
        trial = Trial(
            number=asked.number,
            role=step.role,
            configuration=candidate.configuration,
            engine_version=candidate.engine_version,
            command=self._command_of(candidate),
            workloads=objective.workloads_of(self._spec, step.role),
            launch_index=self._begun[candidate.fingerprint],
            node=step.node,
            rungs=self._spec.rungs_of(step.role),
        )
        self._begun[candidate.fingerprint] += 1
        for name, value in _attributes(trial).items():
            asked.set_user_attr(name, value)
        self._asked[trial.number] = asked
        return trial

    def tell(self, launch: Launch) -> None:
        """Report the outcome of a trial."""
        trial = self._asked.pop(launch.trial.number)
        state, value, constraints, second = _outcome(self._spec, launch)
        for name, violation in constraints.items():
            trial.set_constraint(name, violation)
        for name, number in second.items():
            trial.set_user_attr(name, number)
        self._study.tell(trial, value, state)


def _outcome(
    spec: StudySpec, launch: Launch
) -> tuple[TrialState, float | None, Mapping[str, float], Mapping[str, float]]:
    """Convert a launch to Optuna's state, objective, constraints, and the second goal's metric as a
    user attribute.

    A configuration that failed is PRUNED with a violated constraint: Optuna's samplers learn
    nothing from FAIL, which is what a measurement that says nothing of the configuration becomes.
    """
    scores = objective.scores_of(spec, launch.result)
    number = scores.second_value
    second = {} if number is None else {spec.goals[-1]: number}
    if launch.result.broke:
        return TrialState.PRUNED, None, {STARTS: 1.0}, second
    if scores.value is None:
        return TrialState.FAIL, None, {}, second
    return TrialState.COMPLETE, scores.value, scores.violations, second


def _attributes(trial: Trial) -> Mapping[str, Any]:
    node = {"node": trial.node} if trial.node else {}
    return {
        "number": trial.number,
        "role": trial.role.value,
        **node,
        "fingerprint": trial.configuration.fingerprint,
    }
