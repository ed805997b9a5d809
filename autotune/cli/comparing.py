"""``autotune bundle`` and ``autotune compare``."""

from __future__ import annotations

from pathlib import Path

from autotune.cli.output import answer, say
from autotune.errors import BadInput, UnknownName
from autotune.study.home import Home, write_atomically


def bundle(study: str, output: Path, prompts: bool, home: Path, as_json: bool) -> None:
    """``autotune bundle``."""
    from autotune.outputs.bundle import bundle as content_of

    content = content_of(Home(home), study, say, prompts=prompts)
    try:
        write_atomically(output, content, mode=0o600 if prompts else 0o644)
    except OSError as error:
        raise BadInput(f"-o {output}: cannot be written ({error.strerror})") from error
    told = {"study": study, "file": str(output), "bytes": len(content)}
    lines = [f"wrote {output} ({len(content):,} bytes); replay it with:", f"autotune run --on replay:{output}"]
    answer(as_json, told, lines)


def compare(a: str, b: str, home: Path, as_json: bool) -> None:
    """Print the comparison of two studies or of two bench results; raises `BadInput` for what is neither."""
    from autotune.loadgen.bench.compare import compare as compare_results
    from autotune.outputs.study_comparison import compare_studies, study_named

    folder = Home(home)
    one, other = study_named(a, folder), study_named(b, folder)
    if one is None and other is None:
        results = compare_results(Path(a), Path(b))
        answer(as_json, results.to_json(), results.lines())
        return
    if one is None or other is None:
        hint = f"Looked in {folder.studies}; a bundle's file will do too. A study is compared with another one only."
        raise UnknownName("study", a if one is None else b, folder.names(), hint)
    studies = compare_studies(one, other)
    answer(as_json, studies.to_json(), studies.lines())
