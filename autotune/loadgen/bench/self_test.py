"""``autotune bench --self-test``: how far the client itself can be trusted on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from autotune.errors import LoadFailed
from autotune.loadgen import Target
from autotune.loadgen.client.generator import Limits
from autotune.loadgen.client.health import ClientHealth, HealthLimits
from autotune.loadgen.client.prompts import PromptKey, Prompts
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.client.worker_task import Share
from autotune.loadgen.self_test import RunLoad, SelfTestRow, beyond, heading, line, self_test
from autotune.loadgen.workers import Workers, workers_for
from autotune.study.home import write_atomically


def limits_in_force() -> dict[str, float]:
    """The limits of the client's figures of health, by their names."""
    return {name: value for name, value in asdict(HealthLimits()).items() if name != "span_s"}


def bench_self_test(workers: int | None, save_result: Path | None, as_json: bool) -> None:
    """Drive the paced server at rising rates; print by how much the client is wrong, and whether it knows.

    Raises:
        BadInput: too few open files are allowed.
        LoadFailed: a load went wrong while every figure of the client was within its limit.
    """
    in_force = limits_in_force()

    def tell(row: SelfTestRow) -> None:
        click.echo(line(row), err=as_json)

    click.echo(heading(), err=as_json)
    with Workers() as pool:
        found = self_test(in_force, run_load=sent_by(pool, workers), on_row=tell)
    document = {**found.to_json(), "limits_in_force": in_force}
    if save_result is not None:
        write_atomically(save_result, json.dumps(document, allow_nan=False) + "\n")
    if as_json:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo("\n".join(found.table()[1 + len(found.rows) :]))
    untold = [row for row in found.rows if not row.true and not row.failed and not beyond(row, in_force)]
    if untold:
        raise LoadFailed(
            f"{len(untold)} of {len(found.rows)} loads were measured wrong while the client was within the limits in "
            "force: on this machine its word is not enough; use more --workers, or a machine that is less busy"
        )


def sent_by(pool: Workers, workers: int | None) -> RunLoad:
    """Sends a load as a measurement does."""

    def run(target: Target, requests: Requests) -> tuple[RequestLog, Sequence[ClientHealth]]:
        share = Share(target, Prompts("m"), requests, PromptKey("self-test", 0, 0), Limits())
        return pool.send(share, workers or workers_for(requests.concurrency))

    return run
