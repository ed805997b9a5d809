"""Request file, ``<result>.requests.parquet``: one row per request, too many for a result in JSON.

The only importer of pyarrow, which is loaded when a file is written and not before.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autotune.base import Json, beside, write_atomically
from autotune.base.arrays import Floats
from autotune.engines.entry import parse_yaml

from .client.messages import RequestLog

SCHEMA = 1
"""Version of the file; ``schema`` in its metadata."""

COLUMNS = parse_yaml(beside(__file__, "request_columns.yaml"))
"""Arrow type of each column, in the order of the file."""


class LoadLog(NamedTuple):
    """Log of one load, and the load's identity."""

    point: str
    seed: int
    log: RequestLog


def requests_path(result: Path) -> Path:
    """Return the path of a result's request file, next to it."""
    return result.with_name(f"{result.name.removesuffix('.json')}.requests.parquet")


def has_requests(path: Path) -> bool:
    """Return whether a file was written by `write_requests`: it has our columns."""
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names) == list(COLUMNS)
    except (OSError, ValueError):
        return False


def write_requests(path: Path, loads: Sequence[LoadLog], metadata: Mapping[str, object]) -> None:
    """Write the requests of some loads atomically. Raises `OSError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {**COLUMNS, "itl_ms": pa.list_(pa.float32())}
    about = {"schema": str(SCHEMA), **{key: str(value) for key, value in metadata.items()}}
    schema = pa.schema(list(kinds.items()), metadata=about)
    tables = [pa.table(_arrays(load), schema=schema) for load in loads]
    content = BytesIO()
    whole = pa.concat_tables(tables) if tables else schema.empty_table()
    texts = [name for name, kind in COLUMNS.items() if kind == "string"]
    pq.write_table(whole, content, compression="zstd", use_dictionary=texts)
    write_atomically(path, content.getvalue())


def _arrays(load: LoadLog) -> Json:
    log = load.log
    records = load.log.records
    start_s = float(records.sent_s.min()) if len(log) else 0.0
    return {
        "point": [load.point] * len(log),
        "seed": np.full(len(log), load.seed),
        "request": np.arange(len(log)),
        "sent_s": _nullable(records.sent_s - start_s),
        "ttft_s": _nullable(records.first_token_s - records.sent_s),
        "e2el_s": _nullable(records.finished_s - records.sent_s),
        "input_tokens": _nullable(records.input_tokens, whole=True),
        "output_tokens": _nullable(records.output_tokens, whole=True),
        "cached_tokens": _nullable(log.cached_tokens, whole=True),
        "expected_tokens": log.expected_tokens,
        "chunks": log.chunks,
        "retries": log.retries,
        "send_delay_s": _nullable(log.send_delay_s),
        "outcome": [outcome.name for outcome in log.outcomes],
        # A server's words may hold half a surrogate pair, which no UTF-8 has.
        "message": [
            outcome.message.encode("utf-8", "replace").decode() for outcome in log.outcomes
        ],
        "itl_ms": _gaps(log),
    }


def _nullable(values: Floats, whole: bool = False) -> Any:
    """Return numbers with null for missing ones."""
    import pyarrow as pa

    unknown = np.isnan(values)
    return pa.array(
        np.where(unknown, 0, values).astype(np.int64) if whole else values, mask=unknown
    )


def _gaps(log: RequestLog) -> Any:
    """Return the gaps between chunks, one list per request; a log has those of all successful
    requests joined."""
    import pyarrow as pa

    ok = log.records.ok
    gaps_ms = log.records.itl_ms
    counts = np.where(ok, np.maximum(log.chunks - 1, 0), 0)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    if offsets[-1] != len(gaps_ms):
        raise ValueError(f"{len(gaps_ms)} gaps in a log whose chunks make {offsets[-1]}")
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(gaps_ms.astype(np.float32)), mask=pa.array(~ok)
    )
