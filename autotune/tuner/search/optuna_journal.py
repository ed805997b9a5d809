"""A study's launches as an Optuna study for dashboards: one trial per launch, of the same number.

The source of truth is `results.jsonl`, from which the journal is written again whenever the study
is opened. Only the launches that were running are read from an earlier journal, as no other file
has them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import TrialState, create_trial

from autotune.base import Json, write_atomically
from autotune.engines import Candidate, CandidateSet, Command, Configuration

from ..study.spec import StudySpec
from ..trial import Launch, Role, Trial
from . import objective
from .gp.kernels import ENGINE, Encoding
from .plan import Step
from .sampler import outcome_for_optuna


@dataclass
class _Backend(BaseJournalBackend):
    """Optuna's journal file for a single writer, without locks; nothing is written to `path` before
    the first `save`."""

    path: Path
    lines: list[str]
    saved: bool = False

    def read_logs(self, log_number_from: int) -> Iterator[Json]:
        """Read logs as Optuna defines."""
        return map(json.loads, self.lines[log_number_from:])

    def append_logs(self, logs: list[Json]) -> None:
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
        study = optuna.load_study(study_name=None, storage=JournalStorage(_Backend(path, lines)))
        trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    except (ValueError, KeyError, AssertionError):
        return {}
    return {
        trial.number: Step(
            Role(attrs["role"]),
            candidates.position(attrs["fingerprint"]),
            attrs.get("node", ""),
        )
        for trial in trials
        # The fingerprint is written last: a trial without one was never launched.
        if (attrs := trial.user_attrs).get("fingerprint") in candidates
    }


class Journal:
    """Optuna study that is driven by `ask` and `tell`, and kept in a file from `save` on; the
    servers' commands come from `command_of`."""

    def __init__(
        self,
        path: Path,
        spec: StudySpec,
        command_of: Callable[[Candidate], Command],
        encoding: Encoding,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec = spec
        self._command_of = command_of
        self._encoding = encoding
        self._backend = _Backend(path, [])
        storage = JournalStorage(self._backend)
        self._study = optuna.create_study(
            study_name=spec.study,
            storage=storage,
            direction="maximize" if objective.maximises(spec.objective) else "minimize",
        )
        # Name the objective for optuna-dashboard, whose own function for that is not installed.
        self._id = storage.get_study_id_from_name(spec.study)
        storage.set_study_system_attr(self._id, "dashboard:objective_names", [spec.objective])
        self._storage = storage
        self._begun = Counter[str]()

    def add(self, launch: Launch | None) -> None:
        """Add the next trial as finished; None for a number without a launch."""
        if launch is None:
            self._study.add_trial(create_trial(state=TrialState.FAIL))
            return
        self._begin(launch.number, launch.role, launch.trial.configuration, launch.trial.node)
        self.tell(launch)

    def save(self) -> None:
        """Replace an earlier journal's file; from now on each change is written immediately."""
        self._backend.save()

    def ask(self, step: Step, candidate: Candidate) -> Trial:
        """Start the trial of a step, a launch of this candidate, under the next number."""
        number = self._storage.get_n_trials(self._id)
        return Trial(
            number=number,
            role=step.role,
            configuration=candidate.configuration,
            engine_version=candidate.engine_version,
            command=self._command_of(candidate),
            workloads=objective.workloads_of(self._spec, step.role),
            launch_index=self._begin(number, step.role, candidate.configuration, step.node),
            node=step.node,
            rungs=self._spec.rungs_of(step.role),
        )

    def _begin(self, number: int, role: Role, one: Configuration, node: str) -> int:
        """Add a running trial; return how many launches its configuration had before."""
        fingerprint = one.fingerprint
        params = {n: v for n, v in {**one.knobs, ENGINE: one.engine}.items() if v is not None}
        values = self._encoding.values
        trial = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions={
                name: CategoricalDistribution([*dict.fromkeys([*values.get(name, ()), value])])
                for name, value in params.items()
            },
            user_attrs={
                "number": number,
                "role": role.value,
                **({"node": node} if node else {}),
                "fingerprint": fingerprint,
            },
        )
        self._study.add_trial(trial)
        self._begun[fingerprint] += 1
        return self._begun[fingerprint] - 1

    def tell(self, launch: Launch) -> None:
        """Report the outcome of a trial; see `outcome_for_optuna`."""
        number = self._storage.get_trial_id_from_study_id_trial_number(self._id, launch.number)
        trial = optuna.Trial(self._study, number)
        scores = objective.scores_of(self._spec, launch.result)
        if scores.second_value is not None:
            trial.set_user_attr(self._spec.goals[-1], scores.second_value)
        measured = scores.value is not None
        state, constraints = outcome_for_optuna(launch.result.broke, measured, scores.violations)
        for name, violation in constraints.items():
            trial.set_constraint(name, violation)
        value = scores.value if state is TrialState.COMPLETE else None
        self._study.tell(trial, value, state)
