"""Tables of recorded launches are read as they were written, and refused with the line where they
are wrong."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.engines.command import Scalar
from autotune.engines.failure import FailureKind
from autotune.engines.library import Library
from autotune.load.metrics.table import METRICS
from autotune.tuner.replay.table import PLAIN, Table, is_metric, parse_value, read_table
from autotune.tuner.study.results import row_of
from autotune.tuner.trial import State
from tests import small_study

LIBRARY = Library()
THROUGHPUT = "total_token_throughput"
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12).map(
    str.strip
)
OURS = ("engine", "engine_version", "failure", "workload")
NAMES = TEXTS.filter(lambda name: name != "" and not is_metric(name) and name not in OURS)
WORDS = TEXTS.filter(lambda text: parse_value(text) == text)
BROKEN = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda value: not value.is_integer()
)
FIGURES = st.integers(1, 10**9) | BROKEN.map(abs)
KINDS = [
    st.none() | WORDS | st.integers(-(10**14), 10**14) | BROKEN,
    st.none() | WORDS | st.booleans(),
]


class Written(NamedTuple):
    knobs: list[str]
    metrics: list[str]
    engines: list[str]
    values: list[list[Scalar]]
    figures: list[list[float]]


@st.composite
def written(draw: st.DrawFn) -> Written:
    knobs = draw(st.lists(NAMES, max_size=4, unique=True))
    metrics = draw(st.lists(st.sampled_from(sorted(METRICS)), min_size=1, max_size=3, unique=True))
    columns = [draw(st.sampled_from(KINDS)) for _ in knobs]
    rows = range(draw(st.integers(1, 5)))
    return Written(
        knobs,
        metrics,
        [
            draw(st.sampled_from(["vllm", "tensorrt_llm", "foo", "an engine, of its own"]))
            for _ in rows
        ],
        [[draw(column) for column in columns] for _ in rows],
        [[draw(FIGURES) for _ in metrics] for _ in rows],
    )


def read(content: str | bytes, name: str = "table.csv") -> Table:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(path, LIBRARY)


@given(written(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(0, 2))
def test_what_was_written_is_read(table: Written, end: str, mark: bool, blank: int) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(["engine", *table.knobs, *table.metrics])
    for engine, values, figures in zip(table.engines, table.values, table.figures, strict=True):
        writer.writerow([engine, *values, *figures])
    found = read(("\ufeff" if mark else "") + text.getvalue() + blank * end)
    assert [row.configuration.engine for row in found.rows] == table.engines
    for row, values, figures in zip(found.rows, table.values, table.figures, strict=True):
        knobs = row.configuration.knobs
        assert list(knobs) == table.knobs
        assert [(v, type(v)) for v in knobs.values()] == [(v, type(v)) for v in values]
        assert row.metrics == {PLAIN: dict(zip(table.metrics, figures, strict=True))}
    # Rows are one configuration where engine and knobs are equal, and only there.
    distinct = {
        repr((engine, values)) for engine, values in zip(table.engines, table.values, strict=True)
    }
    assert (
        len(found.repeats)
        == len({row.configuration.fingerprint for row in found.rows})
        == len(distinct)
    )


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        *(("8.0", 8), ("8", 8), (" 8 ", 8), ("1e3", 1000), ("-0", 0), ("0.90", 0.9), (".5", 0.5)),
        *(("TRUE", True), ("false", False), ("", None), ("auto", "auto"), ("yes", "yes")),
        *(
            ("007", "007"),
            ("0.11.0", "0.11.0"),
            ("1_000", "1_000"),
            ("nan", "nan"),
            ("1e999", "1e999"),
        ),
        ("12345678901234567890", "12345678901234567890"),
    ],
)
def test_a_cell_is_what_its_text_says(cell: str, value: Scalar) -> None:
    assert (parse_value(cell), type(parse_value(cell))) == (value, type(value))


def test_booleans_beside_numbers_stay_words_as_true_would_be_1() -> None:
    found = read(f"engine,a,{THROUGHPUT}\nfoo,TRUE,1\nfoo,1,2\nfoo,,3\n")
    assert [row.configuration.knobs["a"] for row in found.rows] == ["true", 1, None]
    assert len(found.repeats) == 3


def test_engines_get_their_own_names_and_a_version_is_no_number() -> None:
    found = read(f"engine,engine_version,{THROUGHPUT}\ntrtllm,0.10,1\nvLLM,0.9,2\nFoo,,3\n")
    assert found.engines == ("tensorrt_llm", "vllm", "Foo")
    assert [row.engine_version for row in found.rows] == ["0.10", "0.9", "unknown"]
    assert found.rows[0].configuration.knobs == {"engine_version": "0.10"}


@pytest.mark.parametrize(
    ("engine", "cell", "kind"),
    [
        ("foo", "out_of_memory", FailureKind.OUT_OF_MEMORY),
        ("foo", "Out of memory: 171 GB of 141 GB", FailureKind.OUT_OF_MEMORY),
        ("foo", "OOM", FailureKind.OUT_OF_MEMORY),
        (
            "vllm",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30 GiB",
            FailureKind.OUT_OF_MEMORY,
        ),
        ("vllm", "error: unrecognized arguments: --enable-foo", FailureKind.BAD_ARGUMENT),
        ("foo", "timed out after 20 minutes", FailureKind.TIMEOUT),
        ("foo", "it fell over", FailureKind.CRASHED),
    ],
)
def test_a_failure_is_of_a_kind(engine: str, cell: str, kind: FailureKind) -> None:
    row = read(f'engine,failure,{THROUGHPUT}\n{engine},"{cell}",0\n').rows[0]
    assert row.failure is not None
    assert row.failure.kind is kind
    assert row.failure.message
    assert row.metrics == {}, "a failed row has no figures, whatever stands there"


HEAD = f"engine,a,{THROUGHPUT}\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        (b"PK\x03\x04\x00\x01", ["no text"]),
        ("engine,a\nfoo,\xe9\n".encode("latin1"), [":2:", "UTF-8"]),
        (HEAD.replace(",", ";"), [":1:", "semicolons", "commas"]),
        ("a,b\n1,2\n", [":1:", "no column 'engine'", "a, b"]),
        ("engine,a,a\nfoo,1,2\n", [":1:", "2 columns 'a'"]),
        ("engine,a,\nfoo,1,2\n", [":2:", "without a name"]),
        (HEAD, ["no row below the header"]),
        (f"{HEAD}\nfoo,1\n", [":3:", "2 cells", "header has 3"]),
        (f"{HEAD}foo,1,fast\n", [":2:", "'fast', not a number"]),
        (f"{HEAD}foo,1,3\nfoo,1,nan\n", [":3:", "finite"]),
        (f"{HEAD}foo,1,-3\n", [":2:", "at least 0"]),
        (f"{HEAD},1,3\n", [":2:", "engine is missing"]),
        (f'{HEAD}foo,"1,3\n', [":2:", "quote"]),
        ("engine,failure\nfoo,FALSE\n", [":2:", "leave the cell empty"]),
        ("engine,failure\nfoo,port\n", ["no row has information"]),
        (f"engine,workload,{THROUGHPUT}\nfoo,x,1\nfoo,y,2\n", ["'workload' has several values"]),
        (HEAD + "".join(f"foo,n{i},1\n" for i in range(4097)), ["4,097 different values"]),
    ],
    ids=lambda value: None if isinstance(value, list) else repr(value[:20]),
)
def test_what_is_no_table_is_refused_with_its_line(content: str | bytes, words: list[str]) -> None:
    with pytest.raises(BadInput) as refusal:
        read(content)
    for word in words:
        assert word in str(refusal.value)


def test_a_study_s_rows_come_back_without_what_says_nothing_of_a_configuration() -> None:
    launches = small_study.launches()
    found = read(
        "".join(json.dumps(row_of(row)) + "\n" for row in launches) + '{"torn', "results.jsonl"
    )
    told = [row for row in launches if row.result.state is not State.INVALID]
    assert [row.configuration for row in found.rows] == [row.trial.configuration for row in told]
    assert [row.failure for row in found.rows] == [row.result.failure for row in told]
    assert [row.metrics.get("sharegpt") for row in found.rows] == [
        row.result.metrics.get("sharegpt") for row in told
    ]
    assert found.rows[0].times_s == launches[0].result.times_s
    assert found.workload == "sharegpt"
    assert found.key_of_workload("chat", objective=True) == PLAIN
    assert found.key_of_workload("chat", objective=False) is None
    assert len(found.notes) == 2
    assert [len(rows) for rows in found.repeats.values()] == [3, 1, 1, 3]


def test_rows_of_two_versions_are_no_repeats() -> None:
    rows = [row_of(row) for row in small_study.launches()[-2:]]
    rows = [*rows, {**rows[1], "engine_version": "0.13.0"}]
    found = read("\n".join(map(json.dumps, rows)), "results.jsonl")
    assert len(found.repeats) == 3


SWEEP = """,date,endpoint_type,backend,model_id,tokenizer_id,num_prompts,request_rate,burstiness,max_concurrency,\
completed,total_token_throughput,rtfx,engine,run_number,max_num_seqs
0,20261127-1,openai,openai,m,m,4,inf,1.0,2,4,267.2,0.0,vllm,0,8
1,20261127-2,openai,openai,m,m,4,inf,1.0,2,4,276.4,0.0,vllm,1,8
2,20261127-3,openai,openai,m,m,4,inf,1.0,2,4,675.6,0.0,vllm,0,64
"""


def test_a_sweep_of_vllm_s_client_has_its_server_s_options_as_knobs(tmp_path: Path):
    """The columns of its ``summary.csv``, the first without a name, and ``engine``."""
    path = tmp_path / "summary.csv"
    path.write_text(SWEEP)
    table = read_table(path, LIBRARY)
    assert list(table.columns) == ["max_num_seqs"]
    assert [len(rows) for rows in table.repeats.values()] == [2, 1]
    assert any("burstiness" in note for note in table.notes)
    path.write_text(SWEEP.replace("inf,1.0,2,4,675.6", "inf,1.0,16,4,675.6"))
    with pytest.raises(BadInput, match="vllm bench serve, whose rows differ in max_concurrency"):
        read_table(path, LIBRARY)


@pytest.mark.parametrize("name", ["r.json", "r.jsonl"])
def test_a_load_generator_s_result_is_called_what_it_is(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text(json.dumps({"model_id": "m", "tokenizer_id": "m", "duration": 1.0}))
    with pytest.raises(BadInput, match=r"a result of vllm bench serve.*autotune compare"):
        read_table(path, LIBRARY)
