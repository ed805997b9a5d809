"""What every format is made from: the recommended configuration, and what the study knows of it besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.engines import Engine, engine
from autotune.errors import BadInput
from autotune.space.context import gpus_of, replicas_of, servers_of
from autotune.study.recommendation import Choice, Recommendation
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Configuration, Launch, State


@dataclass(frozen=True, slots=True)
class Winner:
    """A recommendation that somebody can start.

    Attributes:
        choice: the recommended configuration.
        spec: the study's question: model, hardware, where engines are described.
        ready_s: seconds from launch to ready, of each of its launches that became ready; empty where nobody knows.
        gpus: how many GPUs of the node each of its servers runs on.
        image: the container image that it is to run in; None: the measured one, else the one that is known for it.
    """

    recommendation: Recommendation
    choice: Choice
    spec: StudySpec
    ready_s: tuple[float, ...]
    gpus: int
    image: str | None = None

    @property
    def servers(self) -> tuple[dict[str, str], ...]:
        """What each of several servers sets besides; empty of one."""
        return servers_of(self.choice.config, self.spec.hardware.vendor)

    @property
    def replicas(self) -> int:
        """How many servers it is."""
        return replicas_of(self.choice.config)

    @property
    def engine(self) -> Engine:
        """The engine that it runs on."""
        return engine(self.choice.engine, library_of(self.spec))


def winner_of(
    recommendation: Recommendation, spec: StudySpec, launches: Sequence[Launch], image: str | None = None
) -> Winner:
    """What a finished study recommends.

    Args:
        launches: the study's.
        image: a container image of the user's own.

    Raises:
        BadInput: it recommends nothing, or a server that somebody else runs.
    """
    choice = recommendation.recommended
    if choice is None:
        raise BadInput(
            f"study {recommendation.study!r} has no recommendation to export (verdict {recommendation.verdict.value}); "
            f"`autotune report {recommendation.study}` says why"
        )
    if choice.external:
        raise BadInput(f"somebody else runs the server ({choice.argv[0]}), so there is no command to export")
    same = [
        launch.result
        for launch in launches
        if launch.trial.configuration.fingerprint == choice.fingerprint and launch.result.state is State.COMPLETE
    ]
    return Winner(
        recommendation,
        choice,
        spec,
        ready_s=tuple(result.times_s["ready"] for result in same if result.times_s.get("ready")),
        gpus=gpus_of(Configuration(choice.engine, choice.config), recommendation.gpus) // replicas_of(choice.config),
        image=image,
    )
