"""`StudySpec`: the immutable settings of a study; the content of ``study.yaml``.

Places are shares of a node's GPUs, and the first share while the others idle. Their names stand in
the column ``node`` of a study whose launches run side by side on one machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

import yaml
from pydantic import BaseModel, Field

from autotune.base import (
    BadInput,
    FloatDict,
    Interval,
    Json,
    JsonObject,
    StringDict,
    Strings,
    UnknownName,
)
from autotune.engines import (
    Configuration,
    Context,
    Entry,
    HardwareCard,
    ModelCard,
    Scalar,
    gpus_of,
    parse_yaml,
)
from autotune.engines.installed import InstalledEngine
from autotune.load.capacity.goal import LoadGoal
from autotune.load.metrics.formulas import MOST_VIOLATIONS, Slo, goodput_limits
from autotune.load.metrics.table import GOODPUT, METRICS, Metrics, Rent

from ..trial import DRAFTED, CommandRole, Role, Rungs

BUILTIN = "builtin"
"""The check of answers with autotune's own texts."""
AUTO = "auto"
"""Pinned value that stands for the engine's default."""
_LEAST_LAUNCHES, _LEAST_GB = 20, 100
"""Smallest budget, launches, and smallest model, GB of weights, for which random weights can save
their control."""


class _Value(Entry, BaseModel):
    """Names `BaseModel` again, by which ruff knows that defaults are copied."""


class EngineChoice(_Value):
    """An engine to search, with the version whose parser and defaults apply."""

    name: str
    version: str


class PredictedCommand(_Value):
    """A command that a study measures unchanged: its role in another study, and the objective
    predicted there.

    The fingerprint is that of its configuration under the engine's version here, the interval that
    of a real node.
    """

    role: CommandRole
    engine: str
    command: str
    files: StringDict = {}
    fingerprint: str
    predicted: float
    interval90: Interval | None = None


class Verified(_Value):
    """The study whose predictions are measured, with its evidence, and its commands, the baseline's
    first."""

    study: str
    label: str
    commands: tuple[PredictedCommand, ...]


class StudySpec(_Value):
    """All settings of a study, enough to repeat it; fields that are options mean the same as in
    `RunOptions`.

    Attributes:
        divided: the search sends the first half of a file's requests, and the finals the second.
        traffic: workloads that were read from servers' metrics, by their names among `workloads`.
        pins, among: knob to the value that ``--set`` names, and to all that it names: several are
            searched.
        weights: workload to its weight in the objective, a weighted geometric mean; empty: the
            first workload alone.
        goodput: a latency (``ttft``, ``tpot``, ``e2el``) to the limit in ms that a request keeps to
            count as good; empty: the limits of `slos` on latencies.
        ladder: from the lightest; empty: none.
        find_load: None: the first workload's own load.
        recipe: the engine whose vendor's recipe is the baseline; None for another baseline.
        passed_files: the config files of `engine_args`: name to content; empty in studies of before,
            whose candidates have no file of their own where one is passed.
        baseline_files: the files that the baseline's command brings: name to content.
        accuracy_sha256, table_sha256: of the content of a task file and of a replayed one; a
            resumed study must find the same.
        finals_from: finals of a smaller budget have lower numbers; they count for the search.
        inherited: variables of the shell that began the study, which every server gets unless its
            command sets them; None: no server is launched, or the study is of before, whose servers
            inherit those of each tuner.
        keeps_unread: knobs that the simulated node does not read are not searched; false in studies
            of before.
        keeps_set: candidates of the baseline's engine keep its settings, a recipe's too; in studies
            of before only options without a knob of a command of the user's own.
        measures_latency: times between tokens are measured, not predicted; false in studies of before.
        installed: the engines that are launched from this machine, by name; a resumed study
            launches the same.
        notes: sentences on how the options were read, shown with the result.
        api_key_env, api_key_file: where an external server's API key is; its value is never kept.
        screened: engines whose launches may have random weights, see
            `autotune.tuner.search.screen`; empty: none.
        verifies: predictions to be measured: the only candidates are their commands; None: a
            search.
        calibration: the simulator's coefficients, where they are not the packaged ones: the file's
            content.
        space: path of the user's own space file or folder, read again on resume; None = the
            packaged ones.
    """

    study: str
    model: ModelCard
    hardware: HardwareCard
    gpus: int = Field(gt=0)
    engines: tuple[EngineChoice, ...]
    workloads: Strings
    traffic: dict[str, Json] = {}
    final_workload: str | None = None
    divided: bool = False
    objective: str = "total_token_throughput"
    weights: FloatDict = {}
    pareto: str | None = None
    slos: tuple[Slo, ...] = ()
    goodput: FloatDict = {}
    ladder: Rungs = ()
    gpu_hour_price: float | None = Field(default=None, gt=0)
    find_load: Literal["concurrency", "rate"] | None = None
    baseline: str | None = None
    recipe: str | None = None
    baseline_files: StringDict = {}
    drop: Strings = ()
    pins: dict[str, Scalar] = {}
    among: dict[str, tuple[Scalar, ...]] = {}
    min_context: int | None = Field(default=None, gt=0)
    allow: Strings = ()
    accuracy: str | None = None
    accuracy_sha256: str | None = None
    engine_args: StringDict = {}
    passed_files: StringDict = {}
    launches: int = Field(default=30, gt=0)
    finals_from: int = Field(default=0, ge=0)
    keeps_unread: bool = False
    keeps_set: bool = False
    measures_latency: bool = False
    hours: float | None = None
    inherited: StringDict | None = None
    installed: dict[str, InstalledEngine] = {}
    notes: Strings = ()
    on: str = "simulator"
    executor: str = "local"
    sampler: str = "gp"
    screened: Strings = ()
    explain: Literal["model", "measured"] = "model"
    sources: Strings = ()
    verifies: Verified | None = None
    table_sha256: str | None = None
    noise: float = Field(default=0.0, ge=0)
    seed: int = 0
    space: str | None = None
    calibration: Json | None = None
    images: StringDict = {}
    api_key_env: str | None = None
    api_key_file: str | None = None
    hf_token_file: str | None = None

    @property
    def goals(self) -> Strings:
        """The metrics to optimise: the objective, and the second metric of a front."""
        return (self.objective,) if self.pareto is None else (self.objective, self.pareto)

    @property
    def asked_metrics(self) -> StringDict:
        """Metrics of goals and limits, by the option that names each."""
        limits = {f"--slo {slo}": slo.metric for slo in self.slos}
        return {**dict(zip(("--objective", "--pareto"), self.goals, strict=False)), **limits}

    @property
    def judges_pieces(self) -> bool:
        """Whether a limit on measured inter-token latency judges text that comes in pieces."""
        return self.measures_latency and any("itl" in slo.metric for slo in self.slos)

    @property
    def allowed(self) -> Strings:
        """The trade-offs that may be made: those of ``--allow``, and one that a limit judges."""
        return (*self.allow, "coarse-streaming") if self.judges_pieces else self.allow

    def context(self, version: str, longest_request: int = 0) -> Context:
        """Return the names that an engine's expressions see, in a version of the engine."""
        return Context(self.model, self.hardware, self.gpus, version, longest_request)

    def derived(self, metrics: JsonObject, configuration: Configuration) -> Metrics:
        """Add the metrics derived from one load of a configuration's servers, costs included."""
        return Rent.checked(gpus_of(configuration, self.gpus), self.gpu_hour_price).derived(metrics)

    def lacks(self, needs: str) -> bool:
        """Return whether the option that a metric needs (`Metric.needs`) is missing, or has another
        value."""
        option, _, value = needs.partition(" ")
        values = {"": "", "--gpu-hour-price": self.gpu_hour_price, "--find-load": self.find_load}
        return values[option] is None or value not in ("", values[option])

    @property
    def may_screen(self) -> bool:
        """True if launches with random weights may rank: one throughput, no limit, one launch at a
        time on the node."""
        whole_node = is_local(self.executor) and self.gpus == self.hardware.gpus
        limited = (
            self.slos
            or len(self.goals) > 1
            or not self.load.fixed
            or not METRICS[self.objective].is_work
        )
        small = self.launches < _LEAST_LAUNCHES or self.model.weights_gb < _LEAST_GB
        return whole_node and self.sampler == "gp" and not (limited or small or self.verifies)

    @property
    def reference_checks(self) -> int:
        """Number of baseline launches with checked answers: agreement needs two, a score one."""
        return 0 if self.accuracy is None else 2 if self.accuracy == BUILTIN else 1

    @property
    def request_limits(self) -> tuple[Slo, ...]:
        """The limits of a good request in ``request_goodput``."""
        return goodput_limits(self.goodput) or self.slos

    @property
    def with_goodput_floor(self) -> StudySpec:
        """Return the limits that may be infeasible: the SLOs, and for a goodput
        `MOST_VIOLATIONS`."""
        if self.objective != GOODPUT:
            return self
        return self.with_fields(slos=(*self.slos, MOST_VIOLATIONS))

    @property
    def sent(self) -> Strings:
        """The workloads of all launches, including the finals'."""
        return (*self.workloads, *filter(None, [self.final_workload]))

    @property
    def finals_send_others(self) -> bool:
        """True if finals send other requests than the search: their launches are not repeats of
        each other."""
        return self.divided or self.final_workload is not None

    def prompts_of(self, role: Role) -> Role:
        """Return the role that stands for the requests of a launch: `FINAL` or `SEARCH`."""
        return Role.FINAL if self.finals_send_others and role is Role.FINAL else Role.SEARCH

    @property
    def deciding_roles(self) -> tuple[Role, ...]:
        """Roles of launches that are evidence: the finals, and the baseline if its requests are the
        same."""
        return (
            (Role.FINAL,) if self.finals_send_others else (Role.FINAL, Role.BASELINE, Role.CONTROL)
        )

    @property
    def load(self) -> LoadGoal:
        """The load of the first workload under which launches are compared."""
        return LoadGoal(self.find_load)

    def rungs_of(self, role: Role) -> Rungs:
        """Return the additional concurrencies at which a launch measures the first workload."""
        return self.ladder if role in (Role.BASELINE, Role.FINAL) else ()

    @property
    def by_load(self) -> bool:
        """Return whether the finals show which number of drafted tokens is the best at which
        load."""
        drafts = self.model.architecture.mtp_layers > 0 or "draft_model" in self.among
        return drafts and bool(self.ladder) and DRAFTED not in self.pins

    def to_yaml(self) -> str:
        """Return the text of ``study.yaml``, with YAML's marks of start and end, which reveal a
        truncated file."""
        return yaml.safe_dump(
            self.model_dump(mode="json"),
            sort_keys=False,
            width=120,
            explicit_start=True,
            explicit_end=True,
        )

    @classmethod
    def from_yaml(cls, text: str) -> StudySpec:
        """Parse the result of `to_yaml`; raises ``pydantic.ValidationError`` or
        ``yaml.YAMLError``."""
        # Refuse a file without its last lines: their fields would get their defaults.
        if text.startswith("---") and text.rstrip().rpartition("\n")[2] != "...":
            raise yaml.YAMLError("its end is missing")
        document = parse_yaml(text)
        if isinstance(document, dict):
            # Drop an option of earlier versions.
            document.pop("fetch", None)
        return cls.model_validate(document)


def check_study_name(name: str) -> str:
    """Return a name that is one folder below the studies' folder; raises `BadInput` otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) or ".." in name:
        raise BadInput(
            f"study name {name!r} is not usable as a folder name: use letters, digits, '.', '_' "
            "and '-', beginning with a letter or digit, at most 100 characters"
        )
    return name


def check_executor(name: str) -> str:
    """Return ``local``, ``local:N``, ``ray`` or ``ray:HOST:PORT``; raises `UnknownName` or
    `BadInput` otherwise."""
    kind, colon, address = name.partition(":")
    if kind not in ("local", "ray"):
        raise UnknownName("executor", name, ["local", "local:N", "ray", "ray:ADDRESS"])
    if kind == "local":
        if colon and not (address.isdecimal() and int(address) > 0):
            raise BadInput(
                f"--executor {name}: write local:N for at most N launches at a time, e.g. local:1"
            )
        return name
    host, _, port = address.rpartition(":")
    if colon and ("//" in address or not host or not (port.isdecimal() and 0 < int(port) < 2**16)):
        raise BadInput(
            f"--executor {name}: the address is HOST:PORT of the cluster's head node, as `ray "
            "start --head` prints it, e.g. ray:10.0.0.1:6379; run autotune on one of the cluster's "
            "machines"
        )
    return name


def is_local(executor: str) -> bool:
    """Return whether only this machine launches."""
    return executor.partition(":")[0] == "local"


def most_at_once(executor: str) -> int | None:
    """Return the most concurrent launches of a local executor's name; None: as many as fit."""
    _, colon, count = executor.partition(":")
    return int(count) if colon else None


_SHARE = "gpus "
_ALONE = " alone"


def share_name(gpus: Sequence[int]) -> str:
    """Return the place of a share of the GPUs, e.g. ``gpus 0-3``."""
    first, *others = gpus
    numbers = ",".join(map(str, gpus))
    if others and list(gpus) == list(range(first, others[-1] + 1)):
        numbers = f"{first}-{others[-1]}"
    return f"{_SHARE}{numbers}"


def alone(share: str) -> str:
    """Return the place of a launch on a share while the other shares are idle."""
    return share + _ALONE


def is_alone(place: str) -> bool:
    """Return whether launches of a place have the node to themselves although they use a share of
    it."""
    return place.startswith(_SHARE) and place.endswith(_ALONE)


def may_share_node(place: str) -> bool:
    """Return whether launches of a place may share the node with others."""
    return place.startswith(_SHARE) and not is_alone(place)


def node_of_place(place: str) -> str:
    """Return the node of a place: empty for this machine and its shares; else the place is a
    node."""
    return "" if place.startswith(_SHARE) else place


def at_once(places: Collection[str]) -> int:
    """Return the number of concurrent launches on places that are all free: at least one."""
    return max(1, len({place for place in places if not is_alone(place)}))
