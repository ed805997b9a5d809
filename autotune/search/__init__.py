"""What to launch next, and when to stop: the contract of a study.

`open_study` creates a study in a folder or goes on with the one that is there. What is done next
depends on the finished launches alone (`plan`), so a study that was killed makes the very same
decisions as an undisturbed one. This package is the only importer of Optuna, and it imports it only
when a study is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from autotune.search.prior import Prior
from autotune.space.candidates import Candidate, CandidateSet
from autotune.study.recommendation import Explanation, NoEffect
from autotune.study.spec import StudySpec
from autotune.trial import Command, Launch, Trial

SAMPLERS = ("gp", "nsgaii", "optuna-gp", "random", "tpe")
"""What ``--sampler`` takes: ``gp`` is our Gaussian process over the candidates, the others are Optuna's own."""


KnownNoEffects = Callable[[Trial], Sequence[NoEffect]]


class Study(Protocol):
    """Ask for a launch, make it, tell how it went; until `ask` has nothing left."""

    @property
    def launches(self) -> Sequence[Launch]:
        """The finished launches, by number."""

    @property
    def stop_reason(self) -> str:
        """Why the study has ended; empty while it goes on."""

    @property
    def phase(self) -> str:
        """What the latest launch is for, in words."""

    def ask(self, nodes: Sequence[str] = (), busy: Sequence[str] = ()) -> Trial | None:
        """The next launch; None when the study has ended, or must wait for trials that were not told yet.

        Args:
            nodes: the executor's nodes that may run it, best only those where it could begin at once: `Trial.node` of
                what is asked is one of them, or empty. No nodes: one place without a name.
            busy: those on which it would have to wait: only a launch that was interrupted there is asked for them.
        """

    def tell(self, launch: Launch) -> None:
        """Keep a finished launch: on disk when this returns. Raises ``ValueError`` on a trial that was not asked."""

    def explanation(self, no_effect_of: KnownNoEffects) -> Explanation:
        """What each knob of the winner adds, what did nothing, and what is believed of untried candidates.

        Args:
            no_effect_of: what on a launch's command is known to do nothing without measuring it.
        """

    @property
    def off_nodes(self) -> Mapping[str, str]:
        """The nodes that are slower or faster than the others beyond noise, with the reason to retire them."""

    def close(self) -> None:
        """Release the study's lock; the study can be opened again."""


def open_study(
    folder: Path,
    spec: StudySpec,
    candidates: CandidateSet,
    command_of: Callable[[Candidate], Command],
    priors: Sequence[Prior] = (),
) -> Study:
    """Create the study in ``folder``, or go on where it stopped.

    Args:
        folder: of this study alone; made when it does not exist.
        candidates: must be the same, in the same order, when a study is resumed.
        command_of: how a candidate's server is started.
        priors: what is believed of the candidates; trust in each is learned.

    Raises:
        StudyLocked: another process has the study open.
        UnknownName: no such sampler, or no such objective.
        BadInput: the study's rows do not fit the candidates.
        MalformedFile: ``results.jsonl`` is damaged elsewhere than at its end.
    """
    # Imported here so that `import autotune.search` stays light: Optuna takes a second.
    from autotune.search.study import JournaledStudy

    return JournaledStudy(folder, spec, candidates, command_of, priors)
