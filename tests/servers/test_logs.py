"""From a log to the kind, the telling line and the way out."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.engines.registry import names
from autotune.servers.logs import (
    Progress,
    known_failure,
    last_line,
    patterns_of,
    read_lines,
    unknown_exit,
)
from autotune.servers.watchdog import END_BYTES, cut_middle, free_middle, read_ends

LIBRARY = Library()
ENGINE_CORE = "(EngineCore_DP0 pid=223840) ERROR 10-25 13:08:43 [core.py:708] "


def explain(tmp_path: Path, engine: str, log: str, exit_code: int = 1) -> Failure:
    path = tmp_path / "server.log"
    path.write_text(log)
    card = LIBRARY.engine(engine)
    return known_failure(path, patterns_of(card)) or unknown_exit(path, exit_code, card.title)


SEEN = [
    ("vllm", "vllm: error: unrecognized arguments: --max-num-sekvs 4", "bad_argument"),
    (
        "vllm",
        "vllm serve: error: argument --dtype: invalid choice: 'bf17' (choose from auto, half)",
        "bad_argument",
    ),
    (
        "vllm",
        "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len "
        "(max_position_embeddings=2048 or model_max_length=None in model's config.json).",
        "bad_argument",
    ),
    (
        "vllm",
        "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).",
        "bad_argument",
    ),
    (
        "vllm",
        f"{ENGINE_CORE}ValueError: To serve at least one request with the model's max seq len (8192), (0.02 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (0.01 GiB).",
        "out_of_memory",
    ),
    (
        "vllm",
        "Value error, invalid literal for int() with base 10: '0.5' [type=value_error]",
        "bad_argument",
    ),
    ("vllm", "OSError: [Errno 98] Address already in use", "port"),
    (
        "vllm",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot",
        "infrastructure",
    ),
    (
        "vllm",
        f"{ENGINE_CORE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "out_of_memory",
    ),
    (
        "vllm",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB.",
        "out_of_memory",
    ),
    (
        "vllm",
        "ValueError: Selected backend AttentionBackendEnum.CUTLASS_MLA is not valid for this configuration. "
        "Reason: ['sparse not supported']",
        "unsupported",
    ),
    (
        "vllm",
        "ValueError: Inconsistent GPU visibility env vars: HIP_VISIBLE_DEVICES='0,1' vs CUDA_VISIBLE_DEVICES='2,3'. "
        "Please set only one, or ensure they match.",
        "infrastructure",
    ),
    (
        "sglang",
        "ValueError: Unknown quantization method: mxfp4. Must be one of ['fp8', 'awq']",
        "unsupported",
    ),
    (
        "vllm",
        "(Worker pid=13723) ERROR 11-21 16:15:28 [multiproc_executor.py:1063] ValueError: No common block size for 16 "
        "(CPU_ATTN: [MultipleOf(32)]).",
        "unsupported",
    ),
    (
        "vllm",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        "'/models/none'. Use `repo_type` argument if needed.",
        "infrastructure",
    ),
    (
        "vllm",
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "infrastructure",
    ),
    (
        "vllm",
        "/usr/bin/python3: Error while finding module: No module named 'vllm'",
        "infrastructure",
    ),
    ("sglang", "ModuleNotFoundError: No module named 'torchvision.transforms'", "infrastructure"),
    (
        "sglang",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "out_of_memory",
    ),
    (
        "sglang",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB.",
        "out_of_memory",
    ),
    ("sglang", "launch_server.py: error: unrecognized arguments: --nsa-decode fa3", "bad_argument"),
    (
        "sglang",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        "port",
    ),
    ("tensorrt_llm", "Error: No such option: --tp_sise Did you mean --tp_size?", "bad_argument"),
    (
        "tensorrt_llm",
        "RuntimeError: Executor creation failed due to insufficient GPU memory.",
        "out_of_memory",
    ),
    ("tensorrt_llm", "OSError: [Errno 28] No space left on device", "infrastructure"),
]


@pytest.mark.parametrize(("engine", "line", "kind"), SEEN)
def test_lines_that_were_seen(tmp_path: Path, engine: str, line: str, kind: str) -> None:
    """Among the noise that stands around them."""
    around = "INFO starting\nWARNING no ERROR here\n\x1b[31m{}\x1b[0m\nRuntimeError: see root cause above\nleaked"
    log = around.format(line)
    failure = explain(tmp_path, engine, log)
    assert failure.kind.value == kind
    assert failure.log_excerpt == line.strip()
    assert "{" not in failure.message.replace(line, "")


def test_a_message_begins_with_the_exception(tmp_path: Path) -> None:
    """Not with time stamps, and not in the middle, where a pattern may begin."""
    line = f"{ENGINE_CORE}ValueError: Selected backend X is not valid for this configuration. Reason: ['y']."
    message = explain(tmp_path, "vllm", line).message
    assert message.startswith(
        "ValueError: Selected backend X is not valid for this configuration. Reason: ['y']. Choose"
    )


def test_the_way_out_uses_the_figures(tmp_path: Path) -> None:
    line = "ValueError: max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)."
    assert "--max-num-seqs to at most 32" in explain(tmp_path, "vllm", line).message
    line = (
        "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len "
        "(max_position_embeddings=8192.0 or model_max_length=None in model's config.json)."
    )
    assert "--max-model-len <= 8192." in explain(tmp_path, "vllm", line).message
    line = (
        "To serve at least one request with the model's max seq len (163840), (9.1 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (5 GiB). Based on the available memory, the estimated maximum "
        "model length is 81920."
    )
    assert "--max-model-len <= 81920" in explain(tmp_path, "vllm", line).message


VALUES = ["", " (52)", " = 7392", "=256", " 3", " [1, 128]"]


@pytest.mark.parametrize("engine", names())
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_rule_s_telling_line_has_the_rule_s_kind(
    tmp_path_factory: pytest.TempPathFactory, engine: str, seed: int
) -> None:
    """With any numbers, and with values between its words, as engines print them."""
    told = [
        rule
        for rule in LIBRARY.engine(engine).rules
        if rule.kind not in (FailureKind.RULE, FailureKind.LOAD_ERRORS)
    ]
    assert told
    folder, dice = tmp_path_factory.mktemp("log"), random.Random(seed)
    for rule in told:
        number = str(dice.randint(0, 10**6))
        first, *words = re.sub(r"(?<![\w.])\d+", number, rule.message).split(" ")
        line = " ".join([first, *(word + dice.choice(VALUES) for word in words)])
        assert explain(folder, engine, f"{ENGINE_CORE}{line}").kind is rule.kind, line


@pytest.mark.parametrize("engine", names())
def test_every_rule_s_own_example_has_its_kind(tmp_path: Path, engine: str) -> None:
    unseen = (FailureKind.RULE, FailureKind.LOAD_ERRORS)
    rules = [rule for rule in LIBRARY.engine(engine).rules if rule.kind not in unseen]
    found = [explain(tmp_path, engine, f"{ENGINE_CORE}{rule.message}").kind for rule in rules]
    assert found == [rule.kind for rule in rules]


def test_quoted_source_lines_do_not_count(tmp_path: Path) -> None:
    log = '    raise ValueError("No available memory for the cache blocks. "\nTypeError: the real one\n'
    log += "(APIServer pid=7)     raise LocalEntryNotFoundError(\n"
    failure = explain(tmp_path, "vllm", log)
    assert failure.kind is FailureKind.CRASHED
    assert failure.log_excerpt == "TypeError: the real one"
    log = "    raise HFValidationError(\nhub.errors.HFValidationError: Repo id must be …: '/models/none'.\n"
    assert explain(tmp_path, "vllm", log).message.startswith(
        "hub.errors.HFValidationError: Repo id must be"
    )


@pytest.mark.parametrize(
    ("log", "exit_code", "line"),
    [
        (
            "ERROR EngineCore failed to start.\nTraceback:\n  KeyError: 'x'\nERROR more",
            1,
            "KeyError: 'x'",
        ),
        (
            "WARNING ImportError: no x, using y\n[TRT-LLM] [E] broken\nbye",
            1,
            "[TRT-LLM] [E] broken",
        ),
        ("all is well\r 50 %\r100 %\n\n", 1, "100 %"),
        ("", -9, ""),
    ],
)
def test_without_a_pattern(tmp_path: Path, log: str, exit_code: int, line: str) -> None:
    failure = explain(tmp_path, "vllm", log, exit_code)
    # SIGKILL without an error in the log comes from somebody else.
    assert failure.kind is (FailureKind.INFRASTRUCTURE if exit_code < 0 else FailureKind.CRASHED)
    assert failure.unexplained
    assert failure.log_excerpt == line
    assert ("SIGKILL" if exit_code < 0 else f"exit code {exit_code}") in failure.message


@pytest.mark.parametrize(
    ("log", "from_outside"),
    [
        ("ready\nserving", True),
        ("ready\nKeyError: 'x'\n", False),
        (
            "ready\nFatal Python error: Segmentation fault\nReceived sigquit from a child process.\n",
            False,
        ),
    ],
)
def test_somebody_else_is_suspected_of_a_kill_only_where_the_log_has_no_error(
    tmp_path: Path, log: str, from_outside: bool
) -> None:
    failure = explain(tmp_path, "sglang", log, -9)
    assert "SIGKILL" in failure.message
    assert ("autotune did not send" in failure.message) == from_outside
    assert (failure.kind is FailureKind.INFRASTRUCTURE) == from_outside


def test_a_log_that_is_gone(tmp_path: Path) -> None:
    assert "its log is empty" in unknown_exit(tmp_path / "none", 1, "vLLM").message
    assert known_failure(tmp_path / "none", patterns_of(LIBRARY.engine("vllm"))) is None


def test_a_huge_log_is_read_at_both_ends(tmp_path: Path) -> None:
    """A sparse gigabyte: only its ends are looked at."""
    path = tmp_path / "server.log"
    with path.open("wb") as stream:
        stream.write(b"first\n")
        stream.truncate(2**30)
        stream.seek(0, 2)
        stream.write(b"\nRuntimeError: at the end\n")
    assert last_line(path) == "RuntimeError: at the end"
    assert sum(len(line) for line in read_lines(path)) < 2 * END_BYTES


def test_a_log_without_bounds_gives_its_middle_back(tmp_path: Path) -> None:
    """While it is written every byte keeps its place; afterwards one line stands for the middle."""
    path, end, before = tmp_path / "server.log", 2**20, b"an earlier launch\n"
    lines = [b"line %07d\n" % number for number in range(10 * end // 13)]
    path.write_bytes(before + b"".join(lines))
    with path.open("ab") as server:
        whole = path.stat()
        free_middle(path, len(before), end)
        freed = path.stat()
        assert freed.st_size == whole.st_size
        # In whole blocks; a file system without holes keeps all of it.
        assert freed.st_blocks <= (2 * end + 2**16) // 512 or freed.st_blocks == whole.st_blocks
        server.write(b"the last\n")
    cut_middle(path, len(before), end)
    kept = path.read_bytes().splitlines(keepends=True)
    assert 2 * end - 100 < path.stat().st_size < 2 * end + 200
    (place,) = (place for place, line in enumerate(kept) if line.startswith(b"[autotune: "))
    assert (kept[0], kept[-1]) == (before, b"the last\n")
    assert kept[1:place] == lines[: place - 1]
    behind = len(kept) - place - 2
    assert kept[place + 1 : -1] == lines[-behind:]
    left_out = sum(map(len, lines[place - 1 : -behind]))
    assert kept[place].startswith(b"[autotune: %s bytes omitted" % f"{left_out:,}".encode())
    assert read_ends(path, 20).splitlines(keepends=True)[::2] == [before, b"the last\n"]


def test_a_log_within_bounds_is_left(tmp_path: Path) -> None:
    path, lines = tmp_path / "server.log", b"x" * 100 + b"\n" * 100
    path.write_bytes(lines)
    free_middle(path, end_bytes=100)
    cut_middle(path, end_bytes=100)
    cut_middle(tmp_path / "gone")
    assert path.read_bytes() == read_ends(path, 100) == lines


def test_a_line_without_end_is_cut_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"x" * 5000)
    cut_middle(path, end_bytes=1000)
    assert path.read_bytes().startswith(b"[autotune: 5,000 bytes omitted")


def test_more_than_can_be_read_is_progress(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    progress = Progress(path, 0, ["/health"])
    assert progress() == 0
    with path.open("r+b") as stream:
        stream.truncate(3 * END_BYTES)
    assert progress() == 3 * END_BYTES
    assert progress() == 3 * END_BYTES


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x1b"), max_size=30),
        max_size=30,
    )
)
def test_every_line_comes_once(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    assert [line for line in read_lines(path) if line] == [
        line.strip() for line in lines if line.strip()
    ]


@pytest.mark.parametrize("before", ["", ENGINE_CORE, "(APIServer pid=7) "])
def test_a_message_that_begins_on_a_later_line_is_told(tmp_path: Path, before: str) -> None:
    """As Python's own: "RuntimeError:", a blank line, then the words."""
    words = (
        "RuntimeError: ",
        "   ",
        "        An attempt has been made to start a new process before the",
        "  more",
    )
    log = "Traceback (most recent call last):\n" + "".join(f"{before}{line}\n" for line in words)
    told = explain(tmp_path, "vllm", log)
    assert (
        "RuntimeError: An attempt has been made to start a new process before the (see"
        in told.message
    )
    assert told.log_excerpt.endswith(
        "RuntimeError: An attempt has been made to start a new process before the"
    )
    assert told.unexplained


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            f'{ENGINE_CORE}  File "/x/_aiter_ops.py", line 956, in fused\n'
            f"{ENGINE_CORE}    assert result is not None\n{ENGINE_CORE}           ^^^^^^\n"
            f"{ENGINE_CORE}AssertionError\n(APIServer pid=1) RuntimeError: Engine core initialization failed.",
            'AssertionError: assert result is not None (File "/x/_aiter_ops.py", line 956, in fused)',
        ),
        (
            '  File "/x/a.py", line 3, in <module>\nImportError:\nTraceback (most recent call last):\n',
            'ImportError: File "/x/a.py", line 3, in <module>',
        ),
        (
            ":0:rocdevice.cpp :3020: aborting with a signal\nFatal Python error: Aborted\n",
            ":0:rocdevice.cpp :3020: aborting with a signal; Fatal Python error: Aborted",
        ),
        (
            "RuntimeError: Engine core initialization failed. See root cause above.\nKeyError: 'x'",
            "KeyError: 'x'",
        ),
        ("ready\nsome.lib.errors.OutOfBudget: nothing left\n", "OutOfBudget: nothing left"),
        ("Exception in thread Thread-3 (_spawn):\nbye", "Exception in thread Thread-3 (_spawn):"),
        ("KeyError:\n\n", "last log line: KeyError: (see"),
    ],
)
def test_a_message_says_more_than_a_class_or_that_something_failed(
    tmp_path: Path, log: str, told: str
) -> None:
    failure = explain(tmp_path, "sglang", log, -9)
    assert told in failure.message
    assert "did not send" not in failure.message


def test_an_error_of_a_request_does_not_explain_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    error = "ValueError: Missing environment variable VLLM_X"
    log.write_text(f"Application startup complete\n{error}\n200 OK\n")
    patterns = patterns_of(Library().engine("vllm"))
    assert known_failure(log, patterns, served=False) is not None
    assert known_failure(log, patterns.strong(), served=True) is None
