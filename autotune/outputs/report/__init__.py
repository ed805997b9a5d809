"""Report of a study: `render.render` makes the report, `sentences.brief` the lines for a terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from autotune.base import by_key, frozen
from autotune.tuner.search.equivalents import canonical_of
from autotune.tuner.search.objective import scores_of
from autotune.tuner.study.recommendation import Choice, Recommendation
from autotune.tuner.study.spec import StudySpec, may_share_node
from autotune.tuner.trial import Launch, Role


@frozen
class StudyRecord:
    """The input of a report: a study, its launches by number, and its folder
    ``<home>/studies/<name>``."""

    spec: StudySpec
    launches: Sequence[Launch]
    recommendation: Recommendation
    folder: Path

    @property
    def choices(self) -> dict[str, Choice]:
        """Return the recommended command and the baseline by their roles; an unknown one is left
        out."""
        outcome = self.recommendation
        sides = {"recommended": outcome.recommended, "baseline": outcome.baseline}
        return {role: choice for role, choice in sides.items() if choice}

    @property
    def disturbed_nodes(self) -> set[str]:
        """Return the shares of the GPUs on which launches slowed each other: all launches there are
        invalid."""
        return {
            share.node
            for share in self.recommendation.nodes
            if share.baseline is None and may_share_node(share.node)
        }

    def mark(self, fingerprint: str) -> str:
        """Return a mark with the trade-offs of a launched configuration, for a table; empty without
        any."""
        kinds = self.recommendation.given_up.get(fingerprint)
        return f" (trade-off: {', '.join(kinds)})" if kinds else ""

    def by_configuration(self, *roles: Role) -> dict[str, list[Launch]]:
        """Return fingerprint to its undisturbed launches in these roles (any role without one).

        Launches of equivalents are included; the order is that of the first launches.
        """
        trials = [launch.trial for launch in self.launches]
        baselines = (one.configuration.fingerprint for one in trials if one.role is Role.BASELINE)
        launched = {one.configuration.fingerprint for one in trials}
        canonical = canonical_of(self.launches, launched, next(baselines, None))
        disturbed = self.disturbed_nodes
        return by_key(
            (canonical.get(launch.fingerprint, launch.fingerprint), launch)
            for launch in self.launches
            if launch.result.node not in disturbed and launch.role in (roles or Role)
        )

    def deciding(self, group: Sequence[Launch]) -> list[Launch]:
        """Return the launches of one configuration that count: those of the finals, and all of the
        baseline.

        Those of the search are biased, as they decided who came into the finals; they count where
        there are no others.
        """
        chosen = [launch for launch in group if launch.role in self.spec.deciding_roles]
        return chosen or list(group)

    def value(self, launch: Launch) -> float | None:
        """Return the objective of a launch; None without a valid figure."""
        return scores_of(self.spec, launch.result).value

    def values(self, group: Iterable[Launch]) -> list[float]:
        """Return the objective of each launch that has a valid figure."""
        return [value for value in map(self.value, group) if value is not None]

    @property
    def checked(self) -> list[Launch]:
        """Return the launches whose answers were checked."""
        return [launch for launch in self.launches if launch.result.accuracy]

    @property
    def remarks(self) -> dict[str, list[int]]:
        """Return each remark on a launch to the numbers of its launches."""
        return by_key(
            (one, launch.number) for launch in self.launches for one in launch.result.remarks
        )
