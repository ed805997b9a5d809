"""The text of a shell or a job script is read as a shell reads it, without running any of it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base import BadInput
from autotune.engines import Command, typed_command
from autotune.engines.shell import commands

SERVE = ("vllm", "serve", "m")
HOME = {"HOME": "/h", "B": "bb", "S": "  one  two "}
"""Variables of the shell that a text is typed in."""

READ = {
    # Words and line ends.
    "vllm serve m -tp 4 \\": (*SERVE, "-tp", "4"),
    "vllm serve m \\  \r\n  -tp 4\r\n": (*SERVE, "-tp", "4"),
    "#!/bin/sh\n# a\nvllm serve m -tp 4 # b": (*SERVE, "-tp", "4"),
    "vllm serve m \\\n  # off: -x\n  -tp 4": (*SERVE, "-tp", "4"),
    "vllm serve m\n  -tp 4": (*SERVE, "-tp", "4"),
    "\n$ vllm serve m -tp 4": (*SERVE, "-tp", "4"),
    "vllm serve m $'a\\tb' {1,2}": (*SERVE, "a\tb", "1", "2"),
    "vllm serve m --c {\"a\":1} '{\"b\": 2}'": (*SERVE, "--c", "{a:1}", '{"b": 2}'),
    # Variables.
    "M=m; TP=${N:-2}\nvllm serve $M -tp $TP": (*SERVE, "-tp", "2"),
    "A=1 \\\nC=$B \\\nvllm serve m -x": (*SERVE, "-x"),
    "vllm serve m > log --x $B 2>&1 -y <in": (*SERVE, "--x", "bb", "-y"),
    "A=1 C=3\nvllm serve m $A$C $S": (*SERVE, "13", "one", "two"),
    'A=(--x "y z"); A+=(1); E="-a -b"; vllm serve m "${A[@]}" $E': (
        *SERVE, "--x", "y z", "1", "-a", "-b"
    ),
    "vllm serve m $((2 * 4)) ${B%b} ${#B} ${X:+no} \"${X:-}\"": (*SERVE, "8", "b", "2", ""),
    'vllm serve m --api-key $K --x "${HF_TOKEN}"': (
        *SERVE, "--api-key", "${K}", "--x", "${HF_TOKEN}"
    ),
    'C=$(cat <<EOF\n{"a": "$B"}\nEOF\n)\nvllm serve m --c "$C"': (*SERVE, "--c", '{"a": "bb"}'),
    # What runs depends on conditions.
    '[ "$B" = bb ] && X=-y || X=-n\nvllm serve m $X': (*SERVE, "-y"),
    "if [[ $B == a* || -z $B ]]; then X=1; elif (( 3 > 2 )); then X=2; fi; vllm serve m $X": (
        *SERVE, "2"
    ),
    "case $B in b) X=1;; b*) X=2;; esac; vllm serve m $X": (*SERVE, "2"),
    "N=1; while (( N < 6 )); do N=$((N * 2)); done; vllm serve m $N": (*SERVE, "8"),
    "start() { vllm serve $1; }\nif ready; then start m; fi": SERVE,
    'CMD="vllm serve m"; eval $CMD': SERVE,
    # Launchers, of which most say what is left out.
    "time env -u X exec nohup vllm serve m": SERVE,
    "timeout 1h numactl --cpunodebind=0 -m 0 taskset -c 0-3 vllm serve m": SERVE,
    "sudo -E -u me nice -n 5 stdbuf -oL vllm serve m |& tee log": SERVE,
    "uv run --with x vllm serve m": SERVE,
    "conda run -n v --no-capture-output vllm serve m": SERVE,
    "kubectl exec -it p -c x -- vllm serve m": SERVE,
    "ssh -p 22 host 'cd x && vllm serve m'": SERVE,
    "bash -lc 'source v/bin/activate; vllm serve m'": SERVE,
    "tmux new -d -s x 'vllm serve m'": SERVE,
    "screen -dmS x vllm serve m": SERVE,
    "(set -e; cd x; vllm serve m) 2>&1 | tee log &\nsleep 9; vllm bench serve --model m; curl x": SERVE,
}  # fmt: skip


def read(text: str, variables: dict[str, str] | None = None) -> Command:
    return typed_command(text, HOME if variables is None else variables).command


@pytest.mark.parametrize(("text", "argv"), READ.items())
def test_a_text_is_read_as_a_shell_does(text: str, argv: tuple[str, ...]) -> None:
    assert read(text).argv == argv


REFUSED = {
    "vllm serve $MODEL": r"\$MODEL is not set: set it before, or write its value",
    "vllm serve ${M:?which one}": r"\$M is not set: which one",
    "vllm serve m -tp $(nproc)": r"\$\(nproc\) is known only when the script runs",
    "[ -d /x ] && T=1\nvllm serve m -tp ${T:-2}": r"\$T depends on '\[ -d /x \] && T=1' in line 1",
    "vllm serve m -tp <n> --x": "<n> is a placeholder: write its value",
    "vllm serve m -tp <n of GPUs> # 4": "<n of GPUs> is a placeholder",
    "vllm serve 'm": "malformed command line: .*line 1 at",
    "vllm serve m ^\n -tp 4": r"a line ends in \^.*end it in a backslash",
    "vllm serve a &\nvllm serve b": "2 servers, 'vllm serve a' and 'vllm serve b': give the command",
    "echo hi; sleep $(x)": "no engine's command line is among echo hi, sleep",
    "$P -m sglang.launch_server; sleep 3": r"\$P is not set",
    "srun -N 2 vllm serve m": "srun -N 2: several nodes are out of scope",
    "#SBATCH --nodes=2-4\nvllm serve m": "sbatch --nodes 2-4: several nodes",
    "mpirun -H a,b trtllm-serve m": "mpirun -H a,b: several nodes",
    "A=1": "names no program",
    "vllm serve m\0": "NUL",
    f"x{'(' * 5000}": "malformed|nested too deeply",
    "A=x; while (( 1 < 2 )); do A=$A$A; done": "too long to be read",
}


@pytest.mark.parametrize(("text", "problem"), REFUSED.items())
def test_what_cannot_be_known_is_named(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        read(text)


def test_each_thing_that_is_left_out_is_said_in_a_line() -> None:
    assert read("A=1 \\\nC=$B \\\nvllm serve m").env == {"A": "1", "C": "bb"}
    typed = typed_command(
        "export CUDA_VISIBLE_DEVICES=0 X=$(date) HF_TOKEN=$HF_TOKEN\n"
        "A=2 srun --gpus 4 mpirun -x B -n 1 trtllm-serve m > log 2>&1 &\n"
        "sleep 9; vllm bench serve --model m",
        HOME,
    )
    assert typed.command.argv == ("trtllm-serve", "m")
    assert typed.command.env == {
        "CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "${HF_TOKEN}", "A": "2", "B": "bb"
    }  # fmt: skip
    assert typed.notes == (
        "left out: srun --gpus 4 (autotune starts the server itself; run it in the same allocation)",
        "srun gives it 4 GPUs: --gpus says so to autotune",
        "left out: mpirun -x B -n 1 (autotune starts the server itself)",
        "left out: X ($(date) is known only when the script runs: write its value)",
        "left out: > log 2>&1 (each server has a log of its own)",
        "not run: the script's sleep 9, vllm bench",
    )
    assert typed_command("A=1 vllm serve m --x 'y z'", HOME).notes == ()


def test_files_that_the_script_writes_come_with_the_command() -> None:
    text = (
        "cat > /tmp/c.yml <<EOF\n- ${B}\nEOF\ncat <<'EOF' | tee d.yml\n$B\nEOF\n"
        'echo -e "a: 1\\nb: 2" >> d.yml\ntrtllm-serve m --config /tmp/c.yml --other=d.yml'
    )
    command = read(text)
    assert command.argv == ("trtllm-serve", "m", "--config", "c.yml", "--other=d.yml")
    assert command.files == {"c.yml": "- bb\n", "d.yml": "$B\na: 1\nb: 2\n"}
    assert read(command.shell()) == command, "its own block is read back"


def test_servers_that_differ_in_gpus_and_port_are_replicas() -> None:
    text = "".join(
        f"CUDA_VISIBLE_DEVICES={one} vllm serve m --port 800{one} &\n" for one in range(2)
    )
    command = read(f"{text}wait")
    assert command.argv == SERVE
    assert command.servers == ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"})


def test_a_script_is_read_from_its_file(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text('vllm serve m --chat-template "$(dirname "$0")/t.jinja"\n')
    assert read(f"bash {script}") == read(str(script))
    assert read(str(script)).argv == (*SERVE, "--chat-template", f"{tmp_path}/t.jinja")


WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=9))
PARTS = """vllm serve ;$A;${A};${B:-x y};'q';$(echo a);`b`;$((1+2));&& ;|| ;\\;> f ;<<EOF;EOF;if ;
then ;fi ;[ -n x ] ;for i in 1 2;do ;done ;A=1 ;export ;{a,b};# c;(;);{ ;};case ;in ;f() { ;nohup ;
env ;srun -N ;docker run ;while ;((;));!;&;A=(;A+=;$@;${;eval ;bash -c ';';$';|;"
"""
PIECES = st.sampled_from([*PARTS.split(";"), "; ", "\n", "\\\n"])


@settings(deadline=None, max_examples=60)
@given(WORDS)
def test_quoted_words_come_back_as_they_are(words: list[str]) -> None:
    line = [*SERVE, *words]
    assert read(shlex.join(line)).argv == tuple(line)
    line = [f"-{word}" for word in line]
    assert commands(f"x {shlex.join(line)} # read by the grammar", {})[0].typed == ("x", *line)


@settings(deadline=None, max_examples=120)
@given(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=14).map("".join)))
def test_any_text_is_a_command_or_bad_input(text: str) -> None:
    with suppress(BadInput):
        assert "\0" not in str(read(text, {"A": "1 2"}))


NAMES = st.sampled_from("ABCD")
LITERALS = st.text("ab,:./-%", min_size=1, max_size=4)
EXPANSIONS = st.one_of(
    NAMES.map("${}".format),
    NAMES.flatmap(
        lambda name: st.sampled_from(
            [f"${{{name}{part}}}" for part in (":-x", "-x", ":+p q", "%a*", "##*b", "%%b", "#?")]
        )
    ),
    st.sampled_from(["$((7 / 2 * 3))", "$((3 > 2 ? 5 : 6))", "$(echo a  b)", "${#B}", "$(seq 2)"]),
)
QUOTED = st.one_of(
    st.text('ab {}"$\\#;&|<>\n', max_size=5).map("'{}'".format),
    st.lists(st.one_of(EXPANSIONS, LITERALS, st.sampled_from([" ", '\\"', "\\$"])), max_size=3).map(
        lambda parts: f'"{"".join(parts)}"'
    ),
)
ANY = st.one_of(LITERALS, QUOTED, EXPANSIONS)
TESTS = st.one_of(
    st.tuples(NAMES, st.sampled_from(["= a", "!= ''", "= 'x  y'"])).map(
        '[ "${0[0]}" {0[1]} ]'.format
    ),
    NAMES.map("[[ ${0} == a* || -n ${0} && ! -z $C ]]".format),
    st.sampled_from(["(( 2 > 1 ))", "[ 3 -le 2 ]", "true", "! true"]),
)
STEPS = st.recursive(
    st.one_of(
        st.tuples(NAMES, st.one_of(QUOTED, EXPANSIONS, LITERALS)).map("=".join),
        st.lists(ANY, max_size=3).map(lambda parts: f"R=({' '.join(parts)})"),
        LITERALS.map("R+=({})".format),
        st.lists(st.one_of(ANY, st.sampled_from(['"${R[@]}"', "${R[*]}", "${#R[@]}"]))).map(
            lambda parts: f"vllm serve {' '.join(parts)}"
        ),
    ),
    lambda step: st.one_of(
        st.tuples(TESTS, step, step).map("if {0[0]}; then\n{0[1]}\nelse {0[2]}; fi".format),
        st.tuples(TESTS, step, step).map("{0[0]} && {{ {0[1]}; true; }} || {0[2]}".format),
        st.tuples(NAMES, step).map("for {0[0]} in a 'b c'; do {0[1]}; done".format),
        st.tuples(NAMES, step, step).map('case "${0[0]}" in a|b) {0[1]};; *) {0[2]};; esac'.format),
    ),
    max_leaves=3,
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, min_size=1, max_size=4).map("\n".join))
def test_bash_starts_the_same_words(script: str) -> None:
    """Read scripts of assignments, expansions, tests and loops, and let bash run them with a
    harmless function for the engine."""
    shell = {"A": "a", "B": "x  y", "C": "", "D": "1"}
    engine = "vllm() { printf 'V\\0'; printf '%s\\0' \"$@\"; }\n"
    ran = subprocess.run(
        ["bash", "-f", "-c", engine + script], env=shell, capture_output=True, check=False
    )
    if ran.stderr:
        return
    started = [one.split("\0")[:-1] for one in ran.stdout.decode().split("V\0")[1:]]
    ours = [list(one.typed[1:]) for one in commands(script, shell) if one.typed[0] == "vllm"]
    if "\0" not in str(ours).replace("\\x00", "\0"):
        assert ours == started
