"""Put our candidates and rules through the engines' own argument code, and write
docs/conformance.md.

    python -m tests.real_engines.environment FOLDER
    python -m tests.real_engines.conformance FOLDER --page docs/conformance.md

The first makes the engines' environment in a folder; the second asks. What an engine is asked
about: `cases`; what its answers are compared with: `judge`; what is answered for the GPUs: `gpus`.

After a change of a knob, its values alone, in a minute for each engine and node:

    python -m tests.real_engines.conformance FOLDER --knob attention_backend --engine vllm
        --model Qwen/Qwen3-32B --node b200
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import BadInput
from autotune.engines.cards import HardwareCard
from autotune.engines.command import Configuration, gpus_of_a_server, replicas_of
from autotune.engines.context import Context
from autotune.engines.engine import Engine
from autotune.engines.library import Library
from autotune.engines.space import EngineSpace
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare, too_heavy
from autotune.tuner.prepare.predicted_memory import MemoryPlans
from autotune.tuner.study.options import RunOptions
from tests.real_engines.cases import Case, cases_of
from tests.real_engines.judge import Finding, Judge, explanations
from tests.real_engines.models import CONFIGS, write_checkpoint
from tests.real_engines.page import Outcome, page
from tests.real_engines.process import JsonProcess, engine_environment

NODES = (
    "h200",
    "h100",
    "b200",
    "b300",
    "rtx-pro-6000-blackwell-server",
    "rtx-pro-6000",
    "l40s",
    "mi300x",
    "mi355x",
)
ENGINES = ("sglang", "vllm")
DRAWN = 500
"""Random candidates beside the pairs and rules."""
NEAR = 60
"""Random configurations with two changes that are tried beside the best."""
SEED = 33
_ASK = Path(__file__).with_name("ask.py")


class EngineProcess(JsonProcess):
    """The engine's own Python with everything imported, which answers commands by forks."""

    def __init__(
        self, folder: Path, engine: str, node: Mapping[str, Any], env: Mapping[str, str], work: Path
    ) -> None:
        environment = engine_environment(folder / "src" / engine, work) | env
        argv = [str(folder / "bin" / "python"), str(_ASK), engine, str(work)]
        super().__init__(argv, environment, work, work / f"{engine}-{node['name']}.log", node)

    def warm_up(self, argv: Sequence[str]) -> None:
        """Have what a command line imports and reads done once, for all forks."""
        self.tell({"warm": list(argv)})

    def ask(self, argv: Sequence[str], env: Mapping[str, str], gpus: int) -> dict[str, Any]:
        """The engine's verdict on a command line."""
        return self.tell({"argv": list(argv), "env": dict(env), "gpus": gpus})


@dataclass(frozen=True, slots=True)
class Asking:
    """How much is asked, and where.

    Attributes:
        folder: the engines' environment.
        drawn: random candidates; None: all.
        near: random configurations with two changes that are tried beside the best.
        knobs: ask about cases alone that set one of these as no default does; none: about all.
        workload: the load whose candidates are asked about; some knobs are searched on few loads
            only.
    """

    folder: Path
    drawn: int | None
    near: int = NEAR
    knobs: frozenset[str] = frozenset()
    seed: int = SEED
    workload: str = "sharegpt"


def run_models(asking: Asking, engine: str, node: str, models: Sequence[str]) -> Iterator[Outcome]:
    """Ask one engine about its candidates and rules on one node, with one model after the other."""
    library = Library()
    with ExitStack() as ending:
        work = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        process: EngineProcess | None = None
        for model in models:
            try:
                workload = [asking.workload]
                spec = build_spec(
                    RunOptions(model, node, engines=(engine,), workloads=workload, on="emulator")
                )
                # As it is prepared for a real node, where no odds of a simulated one leave anything
                # out.
                spec = spec.model_copy(update={"on": "process"})
                space = prepare(spec, library, anywhere=True).spaces[engine]
            except BadInput as error:
                yield Outcome(engine, "", model, node, 0, {}, skipped=str(error))
                continue
            plans = MemoryPlans(spec, library)
            if heavy := too_heavy(space.space.configurations, space.context, plans):
                yield Outcome(engine, "", model, node, 0, {}, skipped=heavy[1])
                continue
            checkpoint = write_checkpoint(model, work)
            default = space.effective({})
            if process is None:
                # Some variables are read when modules are imported: those of every command.
                scope = space.context.scope(default.knobs)
                always = {
                    n: v
                    for one in space.engine.always(scope, space.context)
                    for n, v in one.env.items()
                }
                process = EngineProcess(
                    asking.folder,
                    engine,
                    node_of(space.context.hardware, space.context.gpus),
                    always,
                    work,
                )
                ending.callback(process.close)
            process.warm_up(_arguments(space.engine, space.context, default, checkpoint)[0])
            yield _ask_all(asking, process, space, plans, checkpoint)


def _ask_all(
    asking: Asking, process: EngineProcess, space: EngineSpace, plans: MemoryPlans, checkpoint: Path
) -> Outcome:
    engine, context, candidates = space.engine, space.context, space.space.configurations
    began = time.monotonic()
    drawn = len(candidates) if asking.drawn is None else asking.drawn
    groups = cases_of(space, drawn, asking.near, asking.seed)
    if asking.knobs:
        usual = space.effective({}).knobs
        groups = {
            name: [
                c
                for c in cases
                if any(
                    c.configuration.knobs[knob] != usual[knob]
                    for knob in asking.knobs & usual.keys()
                )
            ]
            for name, cases in groups.items()
        }
    counts = {name: len(cases) for name, cases in groups.items()}
    about = (engine.name, context.version, context.model.id, context.hardware.name)
    outcome = Outcome(*about, len(candidates), counts)
    judge = Judge(engine, context, plans, explanations())
    for case in [case for cases in groups.values() for case in cases]:
        outcome.findings += _ask_one(process, judge, case, checkpoint)
    outcome.seconds = time.monotonic() - began
    return outcome


def _ask_one(process: EngineProcess, judge: Judge, case: Case, checkpoint: Path) -> list[Finding]:
    engine, context, one = judge.engine, judge.context, case.configuration
    argv, env = _arguments(engine, context, one, checkpoint)
    gpus = gpus_of_a_server(one, context.gpus) if replicas_of(one.knobs) > 1 else context.gpus
    verdict = process.ask(argv, env, gpus)
    told = " ".join([*(f"{name}={text}" for name, text in env.items()), shlex.join(argv)])
    return list(judge.judge(case, verdict, told.replace(str(checkpoint), context.model.id)))


def _arguments(
    engine: Engine, context: Context, one: Configuration, checkpoint: Path
) -> tuple[list[str], Mapping[str, str]]:
    """What follows the program that vLLM's and SGLang's command lines name, with a folder for the
    model."""
    command = engine.command(one, context)
    rest = engine.arguments(command.argv)
    assert rest is not None
    model = context.model.id
    return [str(checkpoint) if word == model else word for word in rest], command.env


def node_of(hardware: HardwareCard, gpus: int) -> dict[str, Any]:
    """What an engine's process is told of a node."""
    memory = hardware.driver_memory_gb or hardware.memory_gb
    return {
        "name": hardware.name,
        "vendor": hardware.vendor,
        "generation": hardware.generation,
        "gpus": gpus,
        "memory_bytes": int(memory * 1e9) >> 20 << 20,
    }


def read_rows(path: Path) -> list[Outcome]:
    """Read what `--rows` wrote; of one engine, model and node the last line counts."""
    found: dict[tuple[str, str, str], Outcome] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        one = Outcome(**row | {"findings": [Finding(**finding) for finding in row["findings"]]})
        found[one.engine, one.model, one.node] = one
    return sorted(found.values(), key=lambda one: (one.engine, NODES.index(one.node), one.model))


def show(outcome: Outcome) -> str:
    """One line of an outcome, and a line for each kind of finding."""
    if outcome.skipped:
        return f"{outcome.engine:7} {outcome.model} on {outcome.node}: not run: {outcome.skipped}"
    asked = ", ".join(f"{count} {name}" for name, count in outcome.asked.items())
    lines = [
        f"{outcome.engine:7} {outcome.model} on {outcome.node}: {asked}; {outcome.seconds:.0f} s"
    ]
    groups = Counter((f.kind, f.about, bool(f.explained)) for f in outcome.findings)
    for (kind, about, explained), count in sorted(groups.items()):
        first = next(
            f
            for f in outcome.findings
            if (f.kind, f.about, bool(f.explained)) == (kind, about, explained)
        )
        lines.append(
            f"    {count} x {kind}{' (explained)' if explained else ''}: {about}: {first.told}"
        )
        if not explained:
            lines.append(f"        {first.command}")
    return "\n".join(lines)


def _die_with_parent() -> None:
    """End with the process that started this one, however that ends; the engine's process then
    reads no more."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _group(
    asking: Asking, engine: str, node: str, models: Sequence[str], rows: Path | None
) -> list[Outcome]:
    """One engine on one node, in a process of its own; each outcome is shown as it comes."""
    outcomes = []
    for outcome in run_models(asking, engine, node, models):
        outcomes.append(outcome)
        print(show(outcome), flush=True)
        if rows is not None:
            with rows.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
    return outcomes


def main(words: Sequence[str] | None = None) -> int:
    """Run the settings, print what is found, write the page; 1 where anything is left
    unexplained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="the environment of tests.real_engines.environment"
    )
    parser.add_argument(
        "--model", action="append", choices=list(CONFIGS), help="default: all of these"
    )
    parser.add_argument("--node", action="append", choices=NODES, help="default: all")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="default: all")
    parser.add_argument(
        "--drawn", type=int, default=DRAWN, help="random candidates of each model (%(default)s)"
    )
    parser.add_argument(
        "--near",
        type=int,
        default=NEAR,
        help="random configurations of two changes beside the best, beside each value alone (%(default)s)",
    )
    parser.add_argument(
        "--knob", action="append", default=[], help="only where one of these is set; repeatable"
    )
    parser.add_argument(
        "--workload", default="sharegpt", help="whose candidates are asked about (%(default)s)"
    )
    parser.add_argument(
        "--all", action="store_true", help="all candidates; takes long: name a model and a node"
    )
    parser.add_argument("--jobs", type=int, default=2, help="engines at a time (%(default)s)")
    parser.add_argument(
        "--rows", type=Path, help="add every finding to a file, a JSON line for each model"
    )
    parser.add_argument("--page", type=Path, help="write the page")
    parser.add_argument(
        "--page-only",
        action="store_true",
        help="ask nothing: the page from --rows, newest lines first",
    )
    given = parser.parse_args(words)
    if given.page_only:
        given.page.write_text(page(read_rows(given.rows)))
        return 0
    asking = Asking(
        given.folder.resolve(),
        None if given.all else given.drawn,
        given.near,
        frozenset(given.knob),
        workload=given.workload,
    )
    groups = [(engine, node) for node in given.node or NODES for engine in given.engine or ENGINES]
    began, outcomes = time.monotonic(), []
    with ProcessPoolExecutor(given.jobs, initializer=_die_with_parent) as pool:
        running = [
            pool.submit(_group, asking, *group, given.model or list(CONFIGS), given.rows)
            for group in groups
        ]
        for done in as_completed(running):
            outcomes += done.result()
    outcomes.sort(key=lambda one: (one.engine, NODES.index(one.node), one.model))
    minutes = (time.monotonic() - began) / 60
    if given.page:
        given.page.write_text(page(outcomes))
    left = [
        f for o in outcomes for f in o.findings if not f.explained and f.kind != "little memory"
    ]
    print(
        f"{sum(sum(o.asked.values()) for o in outcomes)} combinations, {len(left)} unexplained, {minutes:.1f} minutes"
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
