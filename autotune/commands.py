"""What each command of the command line does: call the product, print the outcome."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from autotune.errors import BadInput, MalformedFile, NothingFeasible, UnknownName
from autotune.home import Home, write_atomically
from autotune.recommendation import Recommendation, Verdict
from autotune.request import Request, Simulation, build_spec, check_gpus, library_for
from autotune.space.library import LOCAL
from autotune.spec import StudySpec

if TYPE_CHECKING:
    from autotune.prepare import EngineSpace

_messages = Console(stderr=True, soft_wrap=True)


def _print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def _say(text: str) -> None:
    _messages.print(text, highlight=False, markup=False)


def run(request: Request, home: Path, as_json: bool, dry_run: bool) -> None:
    """``autotune run``."""
    spec = build_spec(request, _say)
    _check_sampler(spec.sampler)
    _announce(spec, request.on)
    if dry_run:
        _dry_run(spec, as_json)
        return
    Home(home).check_free(spec.study)
    _tune(spec, Home(home), as_json)


def _check_sampler(name: str) -> None:
    from autotune.search import SAMPLERS

    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)


def resume(study: str, home: Path, as_json: bool) -> None:
    """``autotune resume``: the recommendation of a finished study is printed again."""
    folder = Home(home)
    spec = folder.spec(study)
    finished = _finished(folder, study)
    if finished is not None:
        _conclude(finished, folder, as_json)
        return
    _announce(spec, None)
    _tune(spec, folder, as_json)


def _tune(spec: StudySpec, home: Home, as_json: bool) -> None:
    from autotune.progress import ConsoleProgress
    from autotune.run import run as run_study

    # A polite kill is an interruption like Ctrl-C: finish the row, say how to resume.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ConsoleProgress(spec, _messages) as progress:
        recommendation = run_study(spec, home, progress)
    _conclude(recommendation, home, as_json)


def _announce(spec: StudySpec, on: str | None) -> None:
    """The first line says what the numbers will be.

    Args:
        on: what was asked for; None = the study was begun before.
    """
    node = f"{spec.gpus}×{spec.hardware.name}"
    if spec.on == "simulator":
        local = spec.hardware.name == LOCAL
        no_node = f"this machine has no {'engine' if local else f'{node} with an engine'} installed"
        why = {None: "as the study began", "simulator": "as asked for"}.get(on, no_node)
        line = f"SIMULATED: {why}; all numbers come from a simulated {node} node, not from a real one."
    elif spec.on == "emulator":
        line = (
            f"EMULATED: real processes and HTTP, but the engines are stand-ins at the times of a simulated {node} node."
        )
    else:
        line = f"measured on {spec.on}"
    for text in (line, *spec.notes):
        _say(text)


def _finished(home: Home, study: str) -> Recommendation | None:
    path = home.study_folder(study) / "recommendation.json"
    if not path.is_file():
        return None
    try:
        return Recommendation.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        problem = "not a recommendation; remove it, and `autotune resume` writes it again from the launches"
        raise MalformedFile(path, problem) from error


def _conclude(recommendation: Recommendation, home: Home, as_json: bool) -> None:
    if as_json:
        _print_json(recommendation.to_json())
    else:
        _print_recommendation(recommendation, home)
    if recommendation.recommended is None:
        raise NothingFeasible(
            f"nothing feasible was found ({recommendation.stop_reason}); see "
            f"{home.study_folder(recommendation.study) / 'report.md'}"
        )


def _print_recommendation(recommendation: Recommendation, home: Home) -> None:
    from autotune.report import conclusion
    from autotune.tracking import ui_command

    folder = home.study_folder(recommendation.study)
    click.echo(f"\n{conclusion(recommendation)}\n")
    if recommendation.recommended is not None:
        click.echo(f"{recommendation.recommended.command}\n")
        if not recommendation.recommended.external:
            click.echo(f"serve    {folder / 'serve.sh'}")
    click.echo(f"report   {folder / 'report.md'}")
    click.echo(f"mlflow   {ui_command(home.path)}")


def _dry_run(spec: StudySpec, as_json: bool) -> None:
    from autotune.prepare import prepare

    prepared = prepare(spec, library_for(Path(spec.space) if spec.space else None))
    items, command_of = prepared.candidates.items, prepared.command_of
    baseline = command_of(items[prepared.candidates.baseline]).shell()
    starts = [command_of(items[i]).shell() for i in (*prepared.candidates.defaults, *prepared.candidates.starts)]
    counts = {name: len(space.space.configurations) for name, space in prepared.spaces.items()}
    if as_json:
        excluded = [e.model_dump() for e in prepared.excluded]
        _print_json({"candidates": counts, "excluded": excluded, "baseline": baseline, "starts": starts})
        return
    for name, count in counts.items():
        click.echo(f"{name}: {count} candidates")
    for exclusion in prepared.excluded:
        click.echo(f"{exclusion.engine}: excluded, {exclusion.reason}")
    click.echo(f"\nbaseline\n{baseline}\n\ndefaults and good starts")
    click.echo("\n".join(dict.fromkeys(starts)))


def simulate(asked: Simulation, as_json: bool) -> None:
    """``autotune simulate``."""
    from autotune.engines import command_of, split_command
    from autotune.engines.renamed import translate_typed
    from autotune.evaluate import model_of, prediction, understand
    from autotune.load.workloads import load_workload
    from autotune.machine import node
    from autotune.space.context import Context

    library = library_for(None)
    words = asked.engine_command
    # A whole line in quotes is one word; a person means the words in it.
    typed = split_command(words[0]).typed() if len(words) == 1 else words
    command = command_of(translate_typed(typed, asked.engine_version, library, _say))
    load = load_workload(asked.workload, library)
    if asked.concurrency is not None:
        if asked.concurrency < 1:
            raise BadInput(f"--concurrency {asked.concurrency}: at least 1 request must be under way")
        load = load.with_concurrency(asked.concurrency)
    hardware = node(asked.hardware, library)
    model = model_of(command, library, asked.engine_version, asked.model_id)
    context = Context(model, hardware, check_gpus(asked.gpus, hardware), "", load.longest_request)
    understood = understand(command, library, context, asked.engine_version)
    predicted = prediction(understood, load, asked.seed)
    if as_json:
        _print_json(predicted)
    else:
        _print_prediction(predicted)


def _print_prediction(predicted: Mapping[str, Any]) -> None:
    click.echo(f"simulated: {predicted['engine']} {predicted['engine_version']} under {predicted['workload']}")
    for reason in predicted["effects"]:
        click.echo(f"note: {reason}")
    failure = predicted["failure"]
    if failure is not None:
        click.echo(f"does not run ({failure['kind']}): {failure['message']}\n  {failure['log']}".rstrip())
        return
    low, high = predicted["interval90"]
    for name, value in predicted.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            click.echo(f"  {name:<32}{value:>14,.2f}")
    click.echo(f"90 % interval of total_token_throughput on a real node: {low:,.0f} to {high:,.0f}")


def emulate(options: Mapping[str, Any], as_json: bool) -> int:
    """``autotune emulate``: serves until a signal ends it; returns the engine's exit code."""
    from autotune import emulate as emulator
    from autotune.engines.renamed import translate_typed
    from autotune.machine import node

    library = library_for(None)
    typed = translate_typed(options["engine_command"], options["engine_version"], library, _say)
    hardware = node(options["hardware"], library)
    looked_up = {"hardware": hardware, "gpus": check_gpus(options["gpus"], hardware), "engine_command": typed}
    return emulator.emulate(emulator.Emulation(**{**options, **looked_up}), library, as_json)


def report(study: str, format_: str, home: Path, as_json: bool) -> None:
    """``autotune report``."""
    folder = Home(home)
    folder.spec(study)
    path = folder.study_folder(study) / f"report.{format_}"
    if not path.is_file():
        raise BadInput(f"study {study!r} is not finished, so it has no report; go on with `autotune resume {study}`")
    text = path.read_text(encoding="utf-8")
    if as_json:
        _print_json({"study": study, "format": format_, "report": text})
    else:
        click.echo(text)


def export(study: str, format_: str, output: Path | None, home: Path, as_json: bool) -> None:
    """``autotune export``."""
    from autotune.export import export as render

    folder = Home(home)
    folder.spec(study)
    recommendation = _finished(folder, study)
    if recommendation is None:
        raise BadInput(f"study {study!r} is not finished; go on with `autotune resume {study}`")
    text = render(recommendation, format_)
    if output is not None:
        try:
            write_atomically(output, text, mode=0o755 if format_ == "shell" else 0o644)
        except OSError as error:
            raise BadInput(f"-o {output}: cannot be written ({error.strerror})") from error
        _messages.print(f"wrote {output}", highlight=False)
    elif as_json:
        _print_json({"study": study, "format": format_, "text": text})
    else:
        click.echo(text)


def list_studies(home: Path, as_json: bool) -> None:
    """``autotune list``."""
    folder = Home(home)
    if home.exists() and not home.is_dir():
        raise BadInput(f"--home {home}: not a folder")
    rows = [_study_row(folder, name) for name in folder.names()]
    if as_json:
        _print_json(rows)
        return
    if not rows:
        click.echo(f"no studies in {folder.studies}")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), no_wrap=True)
    for row in rows:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    # A file or a pipe has no width: nothing is cut there.
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=250)).print(table, highlight=False)


def _study_row(home: Home, name: str) -> dict[str, Any]:
    try:
        return _readable_row(home, name, home.spec(name), _finished(home, name))
    except MalformedFile as error:
        _messages.print(f"autotune: {error}", highlight=False)
        columns = ("model", "hardware", "evidence", "verdict", "gain", "launches", "age_hours")
        return {"study": name, **dict.fromkeys(columns), "verdict": "unreadable"}


def _readable_row(home: Home, name: str, spec: StudySpec, done: Recommendation | None) -> dict[str, Any]:
    path = home.study_folder(name)
    rows = path / "results.jsonl"
    launches = rows.read_bytes().count(b"\n") if rows.is_file() else 0
    age_h = (datetime.now(UTC).timestamp() - (path / "study.yaml").stat().st_mtime) / 3600
    gain = done.gain_percent if done and done.verdict in (Verdict.BETTER, Verdict.INDISTINGUISHABLE) else None
    if done and done.recommended and done.baseline and done.recommended.fingerprint == done.baseline.fingerprint:
        gain = None
    return {
        "study": name,
        "model": spec.model.id,
        "hardware": f"{spec.gpus}x{spec.hardware.name}",
        "evidence": done.evidence.value if done else None,
        "verdict": done.verdict.value if done else "unfinished",
        "gain": None if gain is None else f"{gain:+.1f} %",
        "launches": launches,
        "age_hours": round(age_h, 1),
    }


def space_show(request: Request, as_json: bool) -> None:
    """``autotune space show``."""
    from autotune.prepare import prepare

    spec = build_spec(request)
    prepared = prepare(spec, library_for(request.space), anywhere=True)
    report = {name: _space_row(space) for name, space in prepared.spaces.items()}
    excluded = {e.engine: e.reason for e in prepared.excluded}
    if as_json:
        _print_json({"model": spec.model.id, "hardware": spec.hardware.name, "engines": report, "excluded": excluded})
        return
    for name, row in report.items():
        click.echo(f"{name} {row['version']}: {row['candidates']:,} candidates of {row['combinations']:,} combinations")
        if row["twins"]:
            click.echo(f"  {row['twins']:>12,}  twins of another one under the engine's own effects")
        for rule, count in sorted(row["removed"].items(), key=lambda item: -item[1]):
            click.echo(f"  {count:>12,}  removed by {rule}")
    for name, reason in excluded.items():
        click.echo(f"{name}: excluded, {reason}")


def _space_row(space: EngineSpace) -> dict[str, Any]:
    found = space.space
    return {
        "version": space.context.version,
        "combinations": found.combinations,
        "candidates": len(found.configurations),
        "twins": found.twins,
        "removed": {rule: count for rule, count in found.removed.items() if count},
    }


def space_check(path: Path | None, engines: Sequence[str], as_json: bool) -> None:
    """``autotune space check``."""
    from autotune.emulate.card import EmulationCard
    from autotune.load.workloads import Workload
    from autotune.simulate.coefficients import SpeedCard
    from autotune.space.checking import check

    schemas: dict[str, type[BaseModel]] = {
        "workloads": Workload,
        "simulation": SpeedCard,
        "emulation": EmulationCard,
    }
    checked = check(path, engines, schemas)
    if as_json:
        _print_json({"checked": [str(p) for p in checked]})
        return
    for file in checked:
        click.echo(f"{file}: valid")
