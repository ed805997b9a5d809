"""Learn the regret that a study states from studies whose truth is known.

    python benchmarks/tuner/regret.py play FILE [--tuning-tables FOLDER …] [--kernel-tables FILE …]
    python benchmarks/tuner/regret.py fit FILE … [--write]

`play` runs whole studies by the product's own path (`Study`, finals included) and writes a record
of each: the kind of its evidence (`autotune.tuner.search.explain.kind_of`), its source, signs of
what is left, and the true regret, noise-free. Sources are

- models on simulated nodes (`QUESTIONS`), with random weights where these pay; the nodes of
  ``--drawn`` seeds have figures drawn away from those of the priors (`drawn_away`). The best is the
  best of what was launched and of the ``--simulate`` candidates that the fast prediction has in
  front, as in `recommended.py`.
- landscapes with their priors (``--landscape``) and without (``--bare``), see `landscapes.py`;
- every table of the ``--tuning-tables`` folders, without a prior.

`fit` is instant. It finds the factor of each kind by which nine of ten studies have no larger
regret than is stated, and judges it on sources that it has not seen: each model on its node, or
table, is left out in turn. A kind is learned if the statements are exceeded in at most a tenth of
these, and are at most three times the true regret in the median; else its factor is null, and
studies of that kind state no regret. All signs of the records are compared; the product's own is
the expected improvement. ``--write`` puts the result into ``search_spaces/regret.yaml``.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from landscape import Sources, command_of
from landscapes import build
from landscapes_simulated import drawn_away
from landscapes_tables import tuning
from recommended import front, trial_of
from screen import Node

from autotune.base.arrays import Floats, descending, ints
from autotune.engines.command import Command
from autotune.engines.entry import spaces_root
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.search.acquisition import model_of
from autotune.tuner.search.decide.verdict import judge
from autotune.tuner.search.explain import ODDS, kind_of, left_to_gain
from autotune.tuner.search.gp.kernels import Kernels, Prior, one_thread
from autotune.tuner.search.gp.posterior import Posterior
from autotune.tuner.search.history import History
from autotune.tuner.search.priors import priors_of
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Trial

QUESTIONS = (
    "deepseek-ai/DeepSeek-V3.2 on h200",
    "deepseek-ai/DeepSeek-R1-0528 on mi300x",
    "zai-org/GLM-4.6-FP8 on h200",
    "moonshotai/Kimi-K2-Instruct on b200",
    "Qwen/Qwen3-235B-A22B-Instruct-2507 on h200",
    "Qwen/Qwen3-32B on 4xh100",
)
LANDSCAPES = (
    "kernels-r1",
    "kernels-v32",
    "misplaced:kernels-v32",
    "walled:kernels-r1",
    "crashing:kernels-v32",
    "overlooked",
)
BARE = ("kernels-r1", "kernels-v32", "walled:kernels-r1", "needle", "plateau")
GB_S, SPREAD = 2.0, 0.03
"""What `screen.py` assumes: rate of reading weights, and spread of random weights by layout."""
LEAST, MOST = 1 - ODDS, 3.0
"""Share of studies in which a learned statement may be exceeded, and its ratio to the truth."""
OWN = "expected improvement"
"""The sign by which the product states a regret."""
FILE = spaces_root() / "regret.yaml"


def signs(history: History, model: Posterior, kernels: Kernels, winner: int) -> dict[str, float]:
    """What may tell the regret of a study, each above 0; logarithms where they are gains."""
    left, alone = (
        left_to_gain(history, one, kernels, winner) for one in (model, model.without_priors())
    )
    tried = [p for p in history.by_position if p != winner and history.feasible(p)]
    best = [tried[i] for i in descending(model.mean(ints(tried)))[:5]]
    leads = [one.interval for one in model.leads(winner, best)]
    means = [float(np.mean(scores)) for p in history.by_position if (scores := history.scores(p))]
    return {
        OWN: left,
        "root of the expected improvement": math.sqrt(left),
        "root of the expected improvement without priors": math.sqrt(alone),
        "constant": 1.0,
        "interval of the lead over the next five": float(np.mean([b - a for a, b in leads])),
        "root of one over the launches": 1 / math.sqrt(len(history)),
        "share never launched": 1 - len({*history.by_position}) / len(kernels.encoding),
        "spread of the scores": float(np.std(means)),
    }


def played(
    spec: StudySpec,
    candidates: CandidateSet,
    commands: Callable[[Candidate], Command],
    priors: Sequence[Prior],
    launch: Callable[[Trial], Launch],
) -> tuple[dict[str, Any], str, list[Launch]] | None:
    """One study: its record without the truth, the winner's fingerprint, and its launches."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-regret-") as folder,
        closing(Study(Path(folder), spec, candidates, commands, priors)) as study,
    ):
        while (trial := study.ask()) is not None:
            study.tell(launch(trial))
        launches = list(study.launches)
        history, kernels = study.known()
    winner = judge(history).winner
    if winner is None:
        return None
    with one_thread():
        found = signs(history, model_of(kernels, history), kernels, winner)
    record = {"kind": kind_of(history, kernels), "seed": spec.seed, "launches": len(history)}
    return record | {"signs": found}, history.candidates.items[winner].fingerprint, launches


def on_tables(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Records of studies over tables."""
    sources = Sources(asked.cache, tuple(asked.kernel_tables), tuning_tables=None)
    found = [(name, build(name, sources)) for name in asked.landscape]
    found += [(f"{name}, no prior", build(name, sources).without_prior()) for name in asked.bare]
    for folder in asked.tuning_tables:
        for path in sorted(folder.glob("*.csv")):
            name = f"tuning:{path.stem}"
            found.append((name, tuning(name, replace(sources, tuning_tables=folder))))
    for name, one in found:
        for seed in asked.seeds:
            changes = {"launches": asked.launches, "seed": seed, "noise": one.noise}
            spec = one.spec.model_copy(update=changes)
            told = played(
                spec, one.candidates, command_of, one.priors, partial(one.launch, seed=seed)
            )
            if told is not None:
                short = one.quality(one.candidates.position(told[1]))
                yield {**told[0], "source": name, "true": -math.log(short)}


def on_nodes(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Records of studies on simulated nodes."""
    for question in asked.question:
        model, _, hardware = question.partition(" on ")
        options = RunOptions(
            model=model, hardware=hardware, study="regret", on="simulator", screen="auto"
        )
        spec = build_spec(options)
        for drawn in asked.drawn:
            if not drawn:
                yield from _on_node(asked, question, drawn, spec, believed=spec)
                continue
            away = drawn_away(drawn, node=spec.hardware.name).model_dump(mode="json")
            # As a study of real servers, whose node has other figures than the priors.
            believed = spec.model_copy(update={"on": "process"})
            own = spec.model_copy(update={"calibration": away})
            yield from _on_node(asked, question, drawn, own, believed)


def _on_node(
    asked: argparse.Namespace, question: str, drawn: int, spec: StudySpec, believed: StudySpec
) -> Iterator[dict[str, Any]]:
    """Records of one node, whose priors are those of another calibration."""
    prepared = prepare(spec, library_of(spec), anywhere=True)
    priors = priors_of(replace(prepared, spec=believed))
    node = Node(prepared, spec)
    given_up = prepared.candidates.given_up
    kept = [one for i, one in enumerate(prepared.candidates.items) if i not in given_up]
    known = json.loads(asked.known.read_text()) if asked.known and asked.known.is_file() else {}
    key = f"{question} {drawn}"
    best = known.get(key) or max(
        node.truth(trial_of(prepared, spec, one), spec)
        for one in front(prepared, spec, asked.simulate)
    )
    told, truths = list[tuple[dict[str, Any], float]](), list[float]()
    for seed in asked.seeds:
        own = spec.model_copy(update={"seed": seed})
        found = played(
            own,
            prepared.candidates,
            prepared.command_of,
            priors,
            partial(_launched, node, seed),
        )
        if found is None:
            continue
        record, winner, launches = found
        served = {one.fingerprint for one in kept}
        by_name = {one.fingerprint: node.truth(one.trial, spec) for one in launches}
        truths += [value for name, value in by_name.items() if name in served]
        told.append((record | {"source": question}, by_name[winner]))
    best = max(best, *truths)
    if asked.known:
        asked.known.write_text(json.dumps(known | {key: best}, indent=1) + "\n")
    for record, value in told:
        yield {**record, "true": math.log(max(best, value) / value)}


def _launched(node: Node, seed: int, trial: Trial) -> Launch:
    return Launch(trial, node.play(trial, seed, GB_S, SPREAD))


def factor_of(true: Floats, sign: Floats) -> float:
    """The factor on a sign that a further study's regret exceeds with odds of a tenth (split
    conformal); shapes ``(studies,)``."""
    ratios = np.sort(true / sign)
    return float(ratios[min(len(ratios), math.ceil(ODDS * (len(ratios) + 1))) - 1])


def judged(rows: Sequence[dict[str, Any]], sign: str) -> dict[str, Any]:
    """The factor of all studies, and statements for each source by the factor of the others."""
    true = np.array([row["true"] for row in rows])
    signs = np.array([row["signs"][sign] for row in rows])
    sources = np.array([row["source"] for row in rows])
    stated = np.full(len(rows), np.inf)
    for source in set(sources):
        own = sources == source
        if not own.all():
            stated[own] = signs[own] * factor_of(true[~own], signs[~own])
    return {
        "factor": factor_of(true, signs),
        "exceeded": float((true > stated + 1e-9).mean()),
        "stated_percent": 100 * math.expm1(float(np.median(stated))),
        "true_percent": 100 * math.expm1(float(np.median(true))),
    }


def fit(asked: argparse.Namespace) -> None:
    """Print each kind by each sign; with ``--write`` keep the product's own."""
    rows = [row for path in asked.files for row in json.loads(path.read_text())]
    found = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        names = sorted({row["source"] for row in own})
        print(f"{kind}: {len(own)} studies, {len(names)} sources")
        for sign in own[0]["signs"]:
            one = judged(own, sign)
            print(
                f"  {one['exceeded']:5.0%} exceeded, median {one['stated_percent']:5.1f} % stated, "
                f"{one['true_percent']:.1f} % true, by the {sign}"
            )
        one = judged(own, OWN)
        good = one["exceeded"] <= LEAST and one["stated_percent"] <= MOST * one["true_percent"]
        figures = {name: round(value, 3) for name, value in one.items()}
        found[kind] = {
            **figures,
            "factor": figures["factor"] if good else None,
            "studies": len(own),
            "launches": min(row["launches"] for row in own),
            "sources": names,
            "seeds": sorted({row["seed"] for row in own}),
        }
    if asked.write:
        head = FILE.read_text().partition("\n\n")[0]
        kinds = [
            yaml.safe_dump({kind: found[kind]}, default_flow_style=None, sort_keys=False, width=90)
            for kind in sorted(found)
        ]
        FILE.write_text("\n".join([f"{head}\n", *kinds]))


def play(asked: argparse.Namespace) -> None:
    """Write the record of each study as it is known."""
    rows = list[dict[str, Any]]()
    for records in (on_nodes(asked), on_tables(asked)):
        for row in records:
            rows.append(row)
            print(
                f"{row['kind']}, {row['source']}, seed {row['seed']}: {row['true']:.1%}", flush=True
            )
            asked.file.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    playing = commands.add_parser("play")
    playing.set_defaults(run=play)
    add = playing.add_argument
    add("file", type=Path, metavar="FILE")
    add("--question", nargs="*", default=list(QUESTIONS), metavar="'MODEL on NODE'")
    nodes = "seeds of nodes drawn away; 0: the packaged figures"
    add("--drawn", type=int, nargs="*", default=[0, 1], metavar="SEED", help=nodes)
    what = "the best of each node, simulated before: of another search on the same simulator"
    add("--known", type=Path, metavar="FILE", help=what)
    add("--simulate", type=int, default=60, help="candidates, the best by the fast prediction")
    add("--landscape", nargs="*", default=list(LANDSCAPES), metavar="NAME", help="with a prior")
    add("--bare", nargs="*", default=list(BARE), metavar="NAME", help="without a prior")
    add("--tuning-tables", type=Path, nargs="*", default=[], metavar="FOLDER")
    add("--kernel-tables", type=Path, nargs="*", default=[], metavar="FILE")
    add("--launches", type=int, default=40, help="of studies over tables")
    add("--seeds", type=int, nargs="+", default=[0, 1])
    add("--cache", type=Path, default=Path(tempfile.gettempdir()) / "autotune-search-benchmark")
    fitting = commands.add_parser("fit")
    fitting.set_defaults(run=fit)
    fitting.add_argument("files", type=Path, nargs="+", metavar="FILE")
    fitting.add_argument("--write", action="store_true", help=f"into search_spaces/{FILE.name}")
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
