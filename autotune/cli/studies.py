"""``autotune report``, ``export``, ``list``, ``bundle`` and ``compare``."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from autotune.base import BadInput, Json, UnknownName, write_atomically
from autotune.load.metrics import readable
from autotune.tuner.study.home import Home
from autotune.tuner.study.recommendation import Recommendation, Verdict
from autotune.tuner.study.results import is_held
from autotune.tuner.study.spec import StudySpec

from .screens import cells, printed
from .shared import answer, print_json, print_markdown, say

_GAIN = ("gain_percent", "gain_ci95", "gain_interval90_on_a_node", "holds_on_a_node")
_KEYS = (
    *("study", "model", "hardware", "evidence", "verdict", "gain", "launches", "age_hours"),
    *("state", "budget", "nodes", "engine", *_GAIN, "objective"),
)

_NO_WIDTH = 10_000


def report(study: str, format_: Literal["md", "html"], home: Path, as_json: bool) -> None:
    """``autotune report``: for an unfinished study the results so far; raises `BadInput` before its
    first launch."""
    folder = Home(home)
    spec = folder.spec(study)
    done = folder.recommendation(study)
    launches = folder.launches(study)
    path = folder.study_folder(study) / f"report.{format_}"
    if done is not None and path.is_file():
        text = path.read_text(encoding="utf-8")
    elif done is None and not launches:
        raise BadInput(_so_far(folder, spec, "report"))
    else:
        from autotune.outputs.report import StudyRecord
        from autotune.outputs.report.render import render
        from autotune.tuner.recommend import unfinished

        outcome = done or unfinished(spec, launches)
        text = render(StudyRecord(spec, launches, outcome, path.parent), format_)
    if as_json:
        print_json(
            {"study": study, "format": format_, "finished": done is not None, "report": text}
        )
    elif format_ == "md" and sys.stdout.isatty():
        print_markdown(text)
    else:
        click.echo(text)


def _so_far(home: Home, spec: StudySpec, lacking: str) -> str:
    """Return the progress of an unfinished study, and the command that continues it."""
    done = len(home.launches(spec.study))
    progress = f"{done} of at most {max(done, spec.launches)} launches are done"
    state = "not finished"
    if is_held(home.study_folder(spec.study)):
        state = "still running"
    else:
        progress += f"; continue with:\n{home.resume_command(spec.study)}"
    return f"study {spec.study!r} is {state}, so it has no {lacking}: {progress}"


def export(
    study: str,
    format_: str | None,
    onto: str | None,
    output: Path | None,
    image: str | None,
    home: Path,
    as_json: bool,
) -> None:
    """``autotune export``."""
    from autotune.outputs.export import check_format, winner_of
    from autotune.outputs.export import export as render
    from autotune.outputs.export.onto import Onto

    if (format_ is None) is (onto is None) or (onto and image):
        raise BadInput(
            "give one of --to FORMAT, which --image may go with, and --onto FILE, whose image stays"
        )
    folder = Home(home)
    spec = folder.spec(study)
    mode = check_format(format_).mode if format_ else 0o644
    recommendation = folder.recommendation(study)
    if recommendation is None:
        raise BadInput(_so_far(folder, spec, "winner"))
    winner = winner_of(recommendation, spec, folder.launches(study), image)
    document: Json = {"study": study, "format": format_}
    if format_:
        text = render(winner, format_)
    else:
        put = Onto(winner, onto or "")
        text, mode = put.text(), Path(put.deployment.name).stat().st_mode & 0o777
        say("\n".join(put.lines(text)))
        document |= {"onto": onto, "changes": [*put.changes()], "notes": put.notes()}
    if output == Path("-"):
        output = None
    if output is not None:
        _write(output, text, mode)
        say(f"wrote {output}")
        document["file"] = str(output)
    if as_json:
        print_json({**document, "text": text})
    elif output is None:
        click.echo(text, nl=False)


def _write(output: Path, content: str | bytes, mode: int) -> None:
    try:
        write_atomically(output, content, mode)
    except OSError as error:
        raise BadInput(f"-o {output}: not writable ({error.strerror})") from error


def list_studies(home: Path, as_json: bool) -> None:
    """``autotune list``; with ``--json`` an object per study with `_KEYS`, null for unknown
    values."""
    folder = Home(home)
    if home.exists() and not home.is_dir():
        raise BadInput(f"--home {home}: not a folder")
    rows = [_row(folder, name) for name in folder.distinct_names()]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"no studies in {folder.studies}")
    else:
        lines = [cells("studies", row) for row in rows]
        several = any(len(row["nodes"] or ()) > 1 for row in rows)
        shown = [name for name in lines[0] if several or name != "nodes"]
        columns = (Column(name, no_wrap=True) for name in shown)
        table = Table(*columns, box=None, pad_edge=False)
        for line in lines:
            table.add_row(*(Text(line[name]) for name in shown))
        Console(width=_NO_WIDTH).print(table, highlight=False)


def _row(home: Home, name: str) -> Json:
    row: Json = dict.fromkeys(_KEYS) | {"study": name}
    try:
        path = home.study_folder(name)
        spec = home.spec(name)
        done = home.recommendation(name)
        launches = home.launches(name)
        age_h = (datetime.now(UTC).timestamp() - (path / "study.yaml").stat().st_mtime) / 3600
    except (BadInput, OSError) as error:
        say(f"autotune: {error}")
        return row | {"verdict": "unreadable", "state": "unreadable"}
    results = [launch.result for launch in launches]
    row |= {
        "model": spec.model.id,
        "hardware": f"{spec.gpus}x{spec.hardware.name}",
        "age_hours": round(age_h, 2),
        "launches": len(results),
        "budget": spec.launches,
        "objective": spec.objective,
        "nodes": list(dict.fromkeys(result.node for result in results if result.node)),
    }
    if done is None:
        return row | {
            "evidence": results[0].label.lower() if results else None,
            "verdict": "unfinished",
            "state": "running" if is_held(path) else "interrupted",
        }
    row |= {
        "evidence": done.label.lower(),
        "verdict": done.verdict.value,
        "state": "finished",
        "engine": done.recommended.engine if done.recommended else None,
    }
    if _has_gain(done):
        row["gain"] = readable.gain_in_words(spec.objective, done.gain_percent)
        row |= {name: getattr(done, name) for name in _GAIN}
    return row


def _has_gain(done: Recommendation) -> bool:
    """Return whether a study compared a configuration with its baseline."""
    if done.verdict not in (Verdict.BETTER, Verdict.INDISTINGUISHABLE) or done.gain_percent is None:
        return False
    best = done.recommended
    baseline = done.baseline
    return not (best and baseline and best.fingerprint == baseline.fingerprint)


def bundle(study: str, output: Path, with_prompts: bool, home: Path, as_json: bool) -> None:
    """``autotune bundle``."""
    from autotune.outputs.bundle import bundle as content_of

    content = content_of(Home(home), study, say, prompts=with_prompts)
    _write(output, content, 0o600 if with_prompts else 0o644)
    lines = [
        f"wrote {output} ({len(content):,} bytes); replay it with:",
        f"autotune run --on replay:{output}",
    ]
    answer(as_json, {"study": study, "file": str(output), "bytes": len(content)}, lines)


def compare(a: str, b: str, home: Path, as_json: bool) -> None:
    """Print the comparison of two studies or of two bench results; raises `BadInput` for anything
    else."""
    from autotune.load.bench.compare import compare as compare_results
    from autotune.outputs.report import sentences
    from autotune.outputs.study_comparison import StudyComparison, study_named

    folder = Home(home)
    one = study_named(a, folder)
    other = study_named(b, folder)
    if one is None and other is None:
        results = compare_results(Path(a), Path(b))
        answer(as_json, results.to_json(), [printed("compared_results", found=results)])
        return
    if one is None or other is None:
        hint = f"Searched in {folder.studies}; a bundle file is also possible. Compare a study only with another study."
        raise UnknownName("study", a if one is None else b, folder.names(), hint)
    studies = StudyComparison(one, other)
    found = studies.to_json()
    known = {**found, "found": studies, "sentences": sentences}
    answer(as_json, found, [printed("compared_studies", **known)])
