"""Read a request file as a user would, with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray


class RequestTable(NamedTuple):
    """Columns of a request file, each of shape (n,), numbers with NaN where there is no value; and
    its metadata."""

    columns: dict[str, NDArray[Any]]
    metadata: dict[str, str]


def read_requests(path: Path) -> RequestTable:
    """Read what `autotune.load.request_file.write_requests` wrote."""
    with pq.ParquetFile(path) as file:
        table = file.read()
    metadata = {
        key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()
    }
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    for name in (
        "sent_s",
        "ttft_s",
        "e2el_s",
        "send_delay_s",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
    ):
        columns[name] = columns[name].astype(np.float64)
    return RequestTable(columns, metadata)
