"""Decision about a load: does it meet every SLO, with stated error odds?

A limit on a quantile, ``p99_ttft_ms<=2000``, is one on a share: at most 1 % of the requests may
take longer. Of n requests the number that do is binomial, so a test of that share says how sure a
verdict is (the exact test of C. J. Clopper and E. S. Pearson, Biometrika 26, 1934). Requests that
follow each other share a queue and are correlated: their number is divided by the factor by which
their share varies more between batches than that of independent requests. A limit on a mean is
judged by Student's test on the means of batches. A limit on anything else is compared with the
figure. An open load must be carried, too: its backlog does not grow, by Student's test on its
changes.

Looking again after more requests gives chance more tries, and so do several limits: `ERROR` is
shared out among them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotune.base.arrays import Bools, Floats

from ..metrics.formulas import Slo
from ..metrics.records import LATENCIES, QUANTILES, RequestRecords, latencies
from ..metrics.table import Metrics

ERROR = 0.05
"""Odds that a load which violates a limit is judged to meet it, or the reverse; over all looks at
it."""
UNCONFIRMED = 0.2
"""Odds that a recommended load violates a limit, from the long load that confirms it."""
LOOKS = 2
"""Looks at one load, each after doubling its requests. After the last look the figure itself
decides: a load still undecided is as close to the limit as the test can resolve."""
BATCHES = 20
"""Number of batches of consecutive requests, for their correlation."""
BY_CHANCE = 1.59
"""Variance inflation exceeded by this number of batches in one of 20 cases for independent
requests: chi-squared with 19 degrees of freedom. Smaller values count as chance."""
COMMON = 0.1
"""Share of the slowest requests used to estimate the correlation of consecutive requests."""
NEAR = 1.5
"""Ratio of limit to quantile above which correlation is ignored: only another load could reach the
limit."""
GROWTH = 0.1
"""Share of the sent requests by which the backlog of an open load may grow if the load meets the
limits."""
STEPS = 10
"""Parts of the second half of an open load used to measure the change of its backlog."""


class Broken(NamedTuple):
    """The limit that a load violates most.

    Attributes:
        slo: as text; the fault of a load that violates none but is not carried or answered.
        value, limit: of its metric.
        excess: share of the limit; 0.1 is 10 %.
    """

    slo: str
    metric: str
    value: float
    limit: float
    excess: float


class Judgement(NamedTuple):
    """Verdict on a load: whether it meets every limit (None while undecided), and the violated
    limit."""

    kept: bool | None
    broken: Broken | None


def least_requests(slos: Sequence[Slo], looks: int = LOOKS) -> int:
    """Return the fewest requests that can show that a load meets every limit: none beyond it, at
    the first look.

    437 for two limits on a 99th percentile, 86 for two on a 95th.
    """
    quantiles = [q for slo in slos if (q := _quantile(slo)) is not None]
    error = error_per_look(slos, looks)
    return max([math.ceil(math.log(error) / math.log(q)) for q in quantiles], default=BATCHES)


def error_per_look(slos: Sequence[Slo], looks: int = LOOKS) -> float:
    """Return the share of `ERROR` for one limit in one look."""
    return ERROR / looks / max(1, len(slos))


def judge(
    slos: Sequence[Slo],
    runs: Sequence[RequestRecords],
    metrics: Metrics,
    rate: float | None,
    last: bool,
    looks: int = LOOKS,
    confirm: bool = False,
) -> Judgement:
    """Decide whether a load meets every SLO, from the latencies of its requests.

    Args:
        runs: the client's records, one for each time that the load was sent.
        metrics: of all of them.
        rate: requests per second at which they were sent; None: in a closed loop.
        last: whether the figures decide an undecided limit.
        looks: most looks at the load.
        confirm: whether an undecided limit is violated, as the load is to be recommended; it has
            one look.
    """
    failed = sum(int((~run.ok).sum()) for run in runs)
    if failed:
        sent = sum(map(len, runs))
        fault = f"{failed} of {sent} requests failed"
        return Judgement(False, Broken(fault, "failed", float(failed), 0.0, failed / sent))
    error = UNCONFIRMED / len(slos) if confirm else error_per_look(slos, looks)
    judged = [(_verdict(slo, runs, metrics, error), _broken(slo, metrics)) for slo in slos]
    if rate is not None:
        judged.append(_carried(runs[-1], rate, last, confirm))
    surely = [broken for kept, broken in judged if kept is False]
    worst = max(surely or [broken for _, broken in judged], key=lambda one: one.excess)
    if surely or (confirm and not all(kept for kept, _ in judged)):
        return Judgement(False, worst)
    if all(kept for kept, _ in judged):
        return Judgement(True, None)
    beyond = worst if worst.excess > 0 else None
    return Judgement(beyond is None if last else None, beyond)


def _verdict(
    slo: Slo, runs: Sequence[RequestRecords], metrics: Metrics, error: float
) -> bool | None:
    """Return whether one limit is met; None while undecided."""
    quantile = _quantile(slo)
    samples = _samples(slo, runs)
    if samples is not None and len(samples):
        if quantile is not None:
            return share_kept(samples, slo.limit, 1 - quantile, error)
        if slo.metric.startswith("mean_"):
            return mean_kept(samples, slo.limit, error)
    return _broken(slo, metrics).excess <= 0


def share_kept(values: Floats, limit: float, allowed: float, error: float) -> bool | None:
    """Return whether at most this share of all requests is beyond a limit; None if the test is
    undecided.

    Args:
        values: of each request, in the order of sending.
        allowed: 0.01 for a 99th percentile.
        error: odds of a wrong verdict, on either side.
    """
    from scipy.special import betainc  # Half a second to load.

    count = float(len(values))
    if NEAR * float(np.quantile(values, 1 - allowed)) > limit:
        # Too few exceed the limit to show correlation: estimate it at a lower level.
        level = min(limit, float(np.quantile(values, 1 - max(allowed, COMMON))))
        count /= _inflation(values > level)
    over = count * float((values > limit).mean())
    # P(X >= k) of a binomial is the incomplete beta function, which also takes fractions.
    at_least = float(betainc(over, count - over + 1, allowed)) if over > 0 else 1.0
    at_most = 1.0 - float(betainc(over + 1, count - over, allowed)) if over < count else 1.0
    if at_most <= error:
        return True
    return False if at_least <= error else None


def mean_kept(values: Floats, limit: float, error: float) -> bool | None:
    """Return whether a mean is at most a limit, from the means of batches; None if the test is
    undecided."""
    from scipy.special import stdtr

    batches = min(BATCHES, len(values))
    if batches < 2:
        return None
    means = np.array([batch.mean() for batch in np.array_split(values, batches)])
    deviation = float(means.std(ddof=1)) / math.sqrt(batches)
    if deviation == 0:
        return bool(means.mean() <= limit)
    odds = float(stdtr(batches - 1, (means.mean() - limit) / deviation))
    if odds <= error:
        return True
    return False if odds >= 1 - error else None


def _inflation(beyond: Bools) -> float:
    """Return the design effect: the variance of batches' shares over that of independent
    requests."""
    share = float(beyond.mean())
    batches = min(BATCHES, len(beyond))
    if not 0 < share < 1 or batches < 2:
        return 1.0
    shares = np.array([batch.mean() for batch in np.array_split(beyond, batches)])
    ratio = float(shares.var(ddof=1)) * len(beyond) / batches / (share * (1 - share))
    return ratio if ratio > BY_CHANCE else 1.0


def _carried(
    run: RequestRecords, rate: float, last: bool, confirm: bool
) -> tuple[bool | None, Broken]:
    """Return whether the backlog of an open load does not grow; to confirm it, none of `GROWTH` may
    be undecided.

    A growth by less than that is undecided until the last look: chance in one look would end the
    search far too low.
    """
    least, mean, most = growth(run, ERROR)
    served = rate * (1 - mean)
    fault = f"of {rate:g} requests per second {served:.3g} are served, so the queue grows"
    excess = mean if least > 0 else mean - GROWTH
    broken = Broken(fault, "request_throughput", served, rate, excess)
    if least > 0:
        return False if last or confirm or mean > GROWTH else None, broken
    return (most if confirm else mean) <= GROWTH or None, broken


def growth(run: RequestRecords, error: float) -> tuple[float, float, float]:
    """Return growth of the backlog in the second half of an open load, as a share of the requests:
    low, mean, high.

    Changes from step to step are taken for independent, as of a queue that wanders freely
    (Student's test). Those of a queue that returns to its level cancel out, so its bounds are wider
    than they need to be.
    """
    from scipy.special import stdtrit

    ends = np.quantile(run.sent_s, np.linspace(0.5, 1.0, STEPS + 1))
    sent, ended = (
        np.searchsorted(np.sort(times), ends, side="right")
        for times in (run.sent_s, run.finished_s)
    )
    changes = np.diff(sent - ended) / max(1.0, float(np.diff(sent).mean()))
    width = float(stdtrit(STEPS - 1, 1 - error)) * float(changes.std(ddof=1)) / math.sqrt(STEPS)
    mean = float(changes.mean())
    return mean - width, mean, mean + width


def _samples(slo: Slo, runs: Sequence[RequestRecords]) -> Floats | None:
    """Return the latencies in ms of a limit, in the order of sending; None for other metrics and
    token gaps."""
    latency = latency_of(slo)
    if latency is None or latency == "itl":
        return None
    series = [latencies(run.successful().in_order_of_sending())[latency] for run in runs]
    return np.concatenate(series)


def latency_of(slo: Slo) -> str | None:
    """Return the latency of an upper limit on one of its statistics; None for other limits."""
    parts = slo.metric.split("_")
    upper = slo.sense == "<=" and len(parts) == 3 and parts[1] in LATENCIES and parts[2] == "ms"
    return parts[1] if upper else None


def _quantile(slo: Slo) -> float | None:
    """Return the quantile of the requests in a limit; None for other limits."""
    if latency_of(slo) in (None, "itl"):
        return None
    return QUANTILES.get(slo.metric.partition("_")[0])


def _broken(slo: Slo, metrics: Metrics) -> Broken:
    value = metrics.get(slo.metric)
    number = float(value) if isinstance(value, int | float) else math.inf
    return Broken(str(slo), slo.metric, number, slo.limit, slo.excess(number))
