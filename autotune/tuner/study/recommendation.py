"""Results of a study: the content of ``recommendation.json`` as values.

`autotune.tuner.recommend` computes it; report, export and tracking read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field

from autotune.base import Evidence, Evidenced, Interval, Json, StringDict
from autotune.engines import Entry, Scalar
from autotune.engines.promises import GivenUp
from autotune.load.metrics import readable
from autotune.load.metrics.table import Metrics

from ..trial import CommandRole, Launch, Side, Speculation
from . import timeline
from .spec import StudySpec

SCHEMA = 1

STAND_IN = "replayed:"
"""Start of `Choice.argv` if a table of recorded launches has no command; the engine's name
follows."""


EXTERNAL = "external:"
"""Start of `Choice.argv` of a server that autotune did not start; its URL follows."""

SERVED = ("kv_cache_tokens", "longest_request_tokens", "odds_of_starting")
"""Figures of launches about the longest request."""
_PREDICTED = {Evidence.SIMULATED: "in the simulation", Evidence.EMULATED: "on the emulated node"}


class Verdict(StrEnum):
    """The verdict on the recommended configuration against the baseline."""

    BETTER = "better"
    INDISTINGUISHABLE = "indistinguishable"
    UNOPPOSED = "unopposed"
    """The baseline could not run."""
    INFEASIBLE = "infeasible"
    """No launch ran, or none met the SLOs."""
    UNFINISHED = "unfinished"
    """The study is unfinished: only in a report, never in ``recommendation.json``."""


class _Value(Entry, BaseModel, extra="ignore", populate_by_name=True):
    """Ignores the keys of other versions."""


class AccuracyComparison(_Value):
    """Result of the check of answers, in the terms of `autotune.tuner.trial.Accuracy`.

    A score is None without a check, `passed` without a comparison. Scores of ``builtin`` are shares
    of tokens that are not wrong compared with the first launch of the baseline.
    """

    kind: str
    baseline: float | None
    baseline_ci95: Interval | None
    recommended: float | None
    recommended_ci95: Interval | None
    threshold: float | None
    passed: bool | None
    note: str = ""
    seconds: float = 0.0


def compared_answers(
    launches: Sequence[Launch], base: str, chosen: str
) -> dict[str, AccuracyComparison]:
    """Return `Recommendation.accuracy` as keywords, of baseline and recommended command; empty
    without a check."""
    checks = [(row.fingerprint, row.result.accuracy) for row in launches if row.result.accuracy]
    if not checks:
        return {}
    references = [(c.baseline, c.baseline_ci95) for _, c in checks if c.passed is not None]
    references += [(c.score, c.ci95) for fingerprint, c in checks if fingerprint == base]
    reference = references[0] if references else (None, None)
    mine = next((check for fingerprint, check in reversed(checks) if fingerprint == chosen), None)
    # The baseline is the reference: it passes once it was checked.
    is_reference = chosen == base and mine is not None
    score, ci95 = (mine.score, mine.ci95) if mine else (None, None)
    if is_reference:
        score, ci95 = reference
    outcome = AccuracyComparison(
        kind=checks[0][1].kind,
        baseline=reference[0],
        baseline_ci95=reference[1],
        recommended=score,
        recommended_ci95=ci95,
        threshold=mine.threshold if mine else None,
        passed=is_reference or (mine.passed if mine else None),
        note=next((check.note for _, check in checks if check.note), ""),
        seconds=sum(check.seconds for _, check in checks),
    )
    return {"accuracy": outcome}


class NodeShare(_Value):
    """One of several nodes that ran a study, with the baseline's objective there (a geometric
    mean).

    Attributes:
        difference_percent: of that from the mean of the other nodes, as measured; negative is
            slower.
        offset_percent: correction of the search's scores; 0 within noise.
        certain: whether it is off beyond noise: then nothing more was launched there.
    """

    node: str
    launches: int
    baseline: float | None
    difference_percent: float | None
    offset_percent: float
    certain: bool


class CurvePoint(_Value):
    """Baseline and recommended configuration at a number of requests in flight.

    Attributes:
        baseline, recommended: geometric means over the launches; None where it was not measured.
        gain_percent: of the recommended one over the baseline, with its 95 % interval by the noise
            of launches.
        faster: which one is, beyond that noise; None: they cannot be told apart.
    """

    concurrency: int
    baseline: float | None
    recommended: float | None
    gain_percent: float | None = None
    ci95: Interval | None = None
    faster: Side | None = None


class Crossing(_Value):
    """The load at which one configuration becomes faster than the other.

    Attributes:
        concurrency: interpolated on its logarithm.
        between: the concurrencies between which neither is faster beyond the noise of launches.
    """

    concurrency: float
    between: Interval
    below: Side
    above: Side


class Curves(_Value):
    """Curves of baseline and recommended configuration over requests in flight, with their
    launches.

    `noise_percent` is the standard deviation from launch to launch that decides which one is
    faster.
    """

    metric: str
    workload: str
    noise_percent: float
    launches: tuple[int, int]
    points: list[CurvePoint]
    crossings: list[Crossing]


class DraftedAtLoad(_Value):
    """Tokens to draft at some numbers of requests in flight: up to one, and above that of the row
    before.

    Attributes:
        up_to_concurrency: None: no launch with these drafts measured the loads.
        gain_percent: over the recommended command at that load; without an interval it is that
            command, as no other number is faster beyond the noise of launches.
    """

    speculative_tokens: int
    up_to_concurrency: int | None = None
    gain_percent: float = 0.0
    ci95: Interval | None = None
    command: str = ""


class StudyCost(_Value):
    """The cost of the study itself, with money if there is a price.

    Attributes:
        node_hours: hours in which a launch ran on a node, over all nodes; side by side on one node
            they count once.
        node_hours_by_fidelity: those of launches with their weights, and with random ones.
        gpu_hours: of the GPUs that launches had; None for a machine without a GPU.
    """

    node_hours: float
    node_hours_by_fidelity: dict[str, float] = {}
    gpu_hours: float | None
    gpu_hour_price: float | None
    cost: float | None

    @classmethod
    def of(cls, spec: StudySpec, launches: Sequence[Launch]) -> StudyCost | None:
        """Return the hours of all launches, in money; None where no time is known.

        Node-hours are those in which a launch ran on a node, whatever part of its GPUs it had: what
        is rented. GPU-hours, and with them the money, are those of the GPUs that launches had.
        """
        # A launch for which no GPUs were reserved had all of the study's.
        gpus = (min(spec.gpus, len(launch.result.gpu_ids)) or spec.gpus for launch in launches)
        gpu_hours = (
            sum(n * launch.result.seconds for n, launch in zip(gpus, launches, strict=True)) / 3600
        )
        if not gpu_hours:
            return None
        random_weights = [launch for launch in launches if launch.ranks_only]
        hours, random_hours = (timeline.node_s(rows) / 3600 for rows in (launches, random_weights))
        by_fidelity = {"full": hours - random_hours, "random_weights": random_hours}
        price = spec.gpu_hour_price
        return cls(
            node_hours=hours,
            node_hours_by_fidelity=by_fidelity,
            gpu_hours=None if spec.hardware.vendor == "cpu" else gpu_hours,
            gpu_hour_price=price,
            cost=None if price is None else gpu_hours * price,
        )

    @property
    def of_which(self) -> str:
        """Return the node-hours of launches with random weights, to end a clause; empty for
        none."""
        hours = self.node_hours_by_fidelity.get("random_weights")
        if not hours:
            return ""
        return f", {readable.number(hours)} node-hours of them for launches with random weights"

    @property
    def in_money(self) -> str:
        """Return the bill in a sentence; empty without a price."""
        if self.cost is None or self.gpu_hour_price is None:
            return ""
        return f"At {self.gpu_hour_price:.2f} per GPU-hour that is {readable.number(self.cost)}."


class Objective(_Value):
    """A goal's metric on one workload. ``ci95`` is for the mean of the repeats (new launches), None
    below two.

    Attributes:
        workload: of a weighted geometric mean, several with their weights: ``sharegpt=2,long=1``.
        interval90_on_a_node: of a simulated or emulated objective; None for another one.
    """

    metric: str
    workload: str
    value: float
    ci95: Interval | None
    repeats: int
    interval90_on_a_node: Interval | None = None


class Choice(_Value):
    """A measured configuration with its command; ``argv`` starts with the ``container``'s words.

    Attributes:
        kv_cache_tokens, longest_request_tokens, odds_of_starting: as of
            `autotune.tuner.trial.TrialResult`, the least of its launches.
        speculation: of one of its launches.
        not_simulated: where figures are predicted, the settings of its command on which none of
            them depends.
    """

    engine: str
    engine_version: str
    config: dict[str, Scalar]
    fingerprint: str
    argv: list[str]
    container: list[str] = []
    env: StringDict
    files: StringDict = {}
    command: str
    objective: Objective
    kv_cache_tokens: int | None = None
    longest_request_tokens: int | None = None
    odds_of_starting: float | None = None
    speculation: Speculation | None = None
    not_simulated: list[str] = []

    @property
    def engine_argv(self) -> list[str]:
        """Return the engine's command line, without the container around it."""
        return self.argv[len(self.container) :]

    @property
    def external(self) -> bool:
        """True if autotune did not start the server, so that its command line is unknown."""
        return self.argv[0].startswith(EXTERNAL)

    @property
    def stand_in(self) -> bool:
        """True if the command is a placeholder that describes a replayed row."""
        return self.argv[0].startswith(STAND_IN)


class Alternative(Choice):
    """Another measured command, its advantage, and the recommended command's gain over it."""

    label: str
    gives_up: list[GivenUp]
    lead_percent: float = Field(alias="price_percent")
    lead_ci95: Interval | None = Field(alias="price_ci95")


class RecipeGain(_Value):
    """The recommended command's gain over a recipe of the engine's card; no interval if it is the
    recipe."""

    engine: str
    recipe: str
    percent: float
    ci95: Interval | None


class WorkloadComparison(_Value):
    """One workload: baseline and recommendation; None if not measured.

    Attributes:
        prompts: whether the search had seen what the finals sent; None where the launches do not
            tell.
        sent: the workload that the finals sent in place of this one; None: none.
    """

    baseline: Metrics | None
    recommended: Metrics | None
    gain_percent: float | None
    prompts: Literal["unseen", "seen"] | None = None
    sent: str | None = None


class MatrixCell(_Value):
    """A configuration's objective on one workload, its gain over the baseline, and whether its mean
    is the best."""

    value: float
    gain_percent: float | None
    ci95: Interval | None
    repeats: int
    best: bool


class MatrixRow(Choice):
    """The baseline, or a finalist that meets the SLOs, on every workload with its measurements."""

    role: Literal["baseline", "recommended", "finalist"]
    workloads: dict[str, MatrixCell]


class FrontPoint(Choice, Evidenced):
    """A measured, non-dominated configuration of two goals."""

    second: Objective
    evidence: Evidence
    evidence_of: Evidence | None = None


LEAST_EFFECT = 0.005
"""Least gain of a setting, score units: 0.5 %."""
LEAST_ODDS = 0.5
"""Odds of that gain below which a setting leaves the command; it also leaves where the expected gain
is smaller."""


class Contribution(_Value):
    """Gain of one setting of the recommended command (or the smallest removable group, joined by
    ``+``).

    The command is compared with the same one with the engine's default for the setting.

    Attributes:
        gain_percent: None where the command without it did not start.
        odds: from 0 to 1, that it adds more than 0.5 %; None where that is not known.
        needed_to: the purpose that the command without it fails.
        measured_on: the source of the figures.
    """

    knob: str
    from_: Scalar = Field(alias="from")
    to: Scalar
    gain_percent: float | None
    ci95: Interval | None
    odds: float | None = None
    needed_to: Literal["start", "keep the limits", "keep what it promises"] | None = None
    measured_on: str

    @property
    def unlikely(self) -> bool:
        """True if the setting is not expected to help but was launched too rarely to drop it; never
        for an engine."""
        return (
            self.knob != "engine"
            and self.needed_to is None
            and self.odds is not None
            and (self.odds < LEAST_ODDS or (self.gain_percent or 0.0) < 100 * LEAST_EFFECT)
        )


class NoEffect(_Value):
    """A knob, or a flag as on the command line, without effect on the objective.

    The reason is one sentence in Markdown and names its source; `launches` are those that show it,
    0 where none was needed.
    """

    knob: str
    values: list[Scalar]
    reason: str
    launches: int = 0


class Regret(_Value):
    """Odds that no configuration in the space, launched or not, is better by more than a number of
    percent.

    Attributes:
        learned_on: the studies of known truth behind the number.
    """

    percent: float
    odds: float
    learned_on: str = ""


class LearnedFigure(_Value):
    """A coefficient of the node's model learned from the launches; `engine=None` means all
    engines."""

    figure: str
    engine: str | None
    from_: float = Field(alias="from")
    to: float
    unit: str


class NotTried(_Value):
    """A value that no launch of the recommended engine had.

    Attributes:
        expected_percent: gain that one launch with it, beside the recommended command, is expected
            to show.
    """

    knob: str
    value: Scalar
    expected_percent: float


class Explanation(_Value):
    """Reasons for the speed of the recommended configuration, and other findings about the
    candidates.

    Attributes:
        regret: None where no studies of known truth teach it.
        left_out: the launches that failed without an explanation, whose configurations may be
            better by any percent.
    """

    contributions: list[Contribution] = []
    inert: list[NoEffect] = []
    regret: Regret | None = None
    left_out: list[int] = []
    search_gain_percent: float | None = None
    search_gain_ci95: Interval | None = None
    learned: list[LearnedFigure] = []
    not_tried: list[NotTried] = []


class Resolution(_Value):
    """A knob that an engine set to another value than requested, in launches of these numbers; the
    note is Markdown.

    They are repeats of another launch where the engine runs one and the same.
    """

    engine: str
    knob: str
    asked: Scalar
    got: Scalar
    note: str
    launches: list[int]
    repeats_of: int | None


class BrokenLimit(_Value):
    """A violated limit; the value is the mean over launches."""

    slo: str
    metric: str
    value: float
    limit: float


class NearestMiss(BrokenLimit):
    """The configuration closest to all SLOs if none meets them; the first limit is violated
    most."""

    command: str
    argv: list[str]
    env: StringDict
    config: dict[str, Scalar]
    load: float | None = None
    broken: list[BrokenLimit] = []


class PredictedValue(_Value):
    """A predicted objective, its interval on a real node, and the error of the prediction over the
    measurement."""

    value: float
    interval90: Interval | None
    error_percent: float | None


class Verification(_Value):
    """A command of another study: its role there, its prediction, its measurement, and its latest
    failure."""

    role: CommandRole
    engine: str
    fingerprint: str
    command: str
    predicted: PredictedValue
    measured: Objective | None
    failure: str | None = None
    not_simulated: list[str] = []


class ComparedCommand(_Value):
    """A command of a study on two versions of its engine, as the new version takes it.

    A change is below 0 where the new version is worse. `failure` says why the command does not run
    there, and `fingerprint` which of the study's configurations it was (empty: not stored).
    """

    role: Side
    argv: list[str]
    change_percent: float | None
    change_ci95: Interval | None
    launches: int
    failure: str | None = None
    fingerprint: str = ""


class Regression(_Value):
    """Comparison of two versions of an engine by a study's commands: the content of
    ``regress.json``.

    Attributes:
        old: ``rows``: the study's own launches stand for the old version, and the comparison is one
            across days.
        still_ahead: whether the recommended command beats the baseline on the new version; None:
            not known.
        notes: options that were translated or borrowed, and limits that are broken on the new
            version.
        tune_again: the command that tunes again from the study, where the recommended one is
            behind.
    """

    verdict: Literal["pass", "regression", "undecided"]
    engine: str
    from_version: str
    to_version: str
    margin_percent: float
    evidence: Evidence
    commands: list[ComparedCommand]
    old: Literal["launched", "rows"]
    launches: int
    still_ahead: bool | None
    changed_defaults: list[Json]
    notes: list[str]
    tune_again: str | None


class PromisedValue(_Value):
    """A property that users of the server notice, of baseline and recommended command, e.g. a
    context of ``40,960``."""

    what: str
    knob: str
    baseline: str
    recommended: str


class ChangedOptions(_Value):
    """Options that a server could have, each with its value and the other one, their command, and
    the predicted gain.

    The interval is that of a real node, in percent.
    """

    options: dict[str, tuple[Scalar, Scalar]]
    gain_percent: float
    gain_interval90: Interval
    command: str


class Advice(_Value):
    """The load that a server could carry with its own command, and the options to look at first:
    simulated.

    Attributes:
        request_rate, total_token_throughput: the highest before requests queue up.
        options: the fastest first; the first one has all that the fastest candidate has.
        measure: the command that measures them.
    """

    evidence: Evidence = Evidence.SIMULATED
    command: str
    request_rate: float
    request_rate_interval90: Interval
    total_token_throughput: float
    options: list[ChangedOptions]
    measure: str


class Exclusion(_Value):
    """An engine that was not searched, and the reason."""

    engine: str
    reason: str


class Recommendation(Explanation, Evidenced):
    """The result of a study. ``recommended`` is None if no configuration is feasible.

    Attributes:
        gain_ci95: from launch to launch.
        gain_interval90_on_a_node: in percent, by the simulator's own error; None unless simulated
            or emulated.
        gain_over_recipe: over the fastest of the vendors' recipes that were launched and kept the
            limits; None where none is known or ran, or the baseline is the only one.
        gives_up: trade-offs of the recommended command; None in a file of an earlier version.
        promised: promises of the recommended command and the baseline; empty where it is the
            baseline.
        kept, translated, dropped: options of the user's command, see `autotune.engines.kept.Kept`.
        given_up: kinds of trade-offs of the launched configurations that have any, by fingerprint.
        alternatives: at least the best command that gives nothing up, where it is another one.
        unconfirmed: why no final of a challenger counts; empty where one does, or nothing was to be
            confirmed.
        predictions: of the study that this one verifies, with what was measured.
        regressions: of later versions of the engine, in the order in which they were compared.
        accuracy: result of the check of answers; None without a check.
        advice: on a server whose traffic was read; None in another study.
    """

    study: str
    model: str
    hardware: str
    gpus: int
    evidence: Evidence
    evidence_of: Evidence | None = None
    verdict: Verdict
    stop_reason: str
    unconfirmed: str = ""
    recommended: Choice | None
    baseline: Choice | None
    gain_percent: float | None
    gain_ci95: Interval | None
    gain_interval90_on_a_node: Interval | None = None
    gain_over_recipe: RecipeGain | None = None
    gives_up: list[GivenUp] | None = None
    promised: list[PromisedValue] = []
    kept: list[str] = []
    translated: list[str] = []
    dropped: list[str] = []
    given_up: dict[str, list[str]] = {}
    alternatives: list[Alternative] = []
    predictions: list[Verification] = []
    regressions: list[Regression] = []
    accuracy: AccuracyComparison | None = None
    workloads: dict[str, WorkloadComparison]
    matrix: list[MatrixRow] = []
    front: list[FrontPoint] = []
    launches: int
    trials: int
    failures: dict[str, int]
    excluded: list[Exclusion]
    not_searched: list[Exclusion] = []
    resolutions: list[Resolution] = []
    nodes: list[NodeShare] = []
    nearest_miss: NearestMiss | None = None
    advice: Advice | None = None
    curves: Curves | None = Field(
        default=None, validation_alias="ladder", serialization_alias="ladder"
    )
    drafts_by_load: list[DraftedAtLoad] = []
    study_cost: StudyCost | None = None
    duration_s: float

    @property
    def address(self) -> str:
        """Return the URL of a server that autotune measured but did not start; empty for any other
        study."""
        shown = self.recommended or self.nearest_miss
        program = shown.argv[0] if shown else ""
        return program.removeprefix(EXTERNAL) if program.startswith(EXTERNAL) else ""

    @property
    def holds_on_a_node(self) -> bool | None:
        """True if the interval on a real node has the verdict's sign; None without a predicted
        gain."""
        ends = self.gain_interval90_on_a_node
        return ends[0] > 0 if ends and self.verdict is Verdict.BETTER else None

    @property
    def qualified_verdict(self) -> str:
        """Return the verdict; for a better prediction, also whether it is better on a real node."""
        where = _PREDICTED.get(self.origin)
        if self.verdict is not Verdict.BETTER or where is None:
            return self.verdict.value
        return f"better {where}, {'expected' if self.holds_on_a_node else 'open'} on a real node"

    def to_json(self) -> Json:
        """Return the object of ``recommendation.json``, with the recommended choice's keys at the
        top level."""
        rows = self.model_dump(mode="json", by_alias=True)
        hardware = {"name": rows.pop("hardware"), "gpus": rows.pop("gpus")}
        chosen = rows.pop("recommended") or dict.fromkeys(Choice.model_fields)
        reasons = {name: rows.pop(name) for name in Explanation.model_fields}
        return {
            "schema": SCHEMA,
            **rows,
            "hardware": hardware,
            **chosen,
            **reasons,
            "holds_on_a_node": self.holds_on_a_node,
        }

    @classmethod
    def from_json(cls, row: Json) -> Recommendation:
        """Parse the result of `to_json`."""
        derived = {"schema", "holds_on_a_node", *Choice.model_fields}
        rest = {key: value for key, value in row.items() if key not in derived}
        chosen = None
        if row.get("engine"):
            chosen = {key: row[key] for key in Choice.model_fields if key in row}
        hardware = rest.pop("hardware")
        return cls(**rest, hardware=hardware["name"], gpus=hardware["gpus"], recommended=chosen)
