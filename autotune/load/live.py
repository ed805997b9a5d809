"""The traffic of running servers as a workload: ``live:URL`` reads their metrics pages for a while,
``metrics:FIRST,LAST`` two saved ones of each.

Histograms of prompts and answers, the arrivals with their bursts, and the share of the prefix cache
become lengths, arrivals and a shared prefix; what counters cannot tell is said. A server gets no
request but GET.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from autotune.base import BadInput, FloatDict, FloatMap, Notify, Terminated, write_atomically
from autotune.base.arrays import Floats
from autotune.engines import EngineCard, Library
from autotune.engines.serving import TrafficMetrics

from .client.target import Target
from .metrics.records import QUANTILES
from .metrics.table import Metrics
from .prefix_cache import CacheUse, DraftUse, acceptance, counters, drafts_of_page, samples, sums
from .server_client import ServerClient
from .workloads import Prefix, Workload

Readings = Mapping[float, str]
"""Pages by the seconds at which they were read; those of several servers one after the other."""

_TOO_FEW = 20
"""Requests below which a window tells no lengths."""
_PER_INTERVAL = 5
"""Fewest arrivals on average of an interval whose count tells bursts."""
_KINDS = "prompt", "generated"
_NEEDED = (
    "vLLM without --disable-log-stats, SGLang with --enable-metrics (before 0.5.12 also "
    "--collect-tokens-histogram) and TensorRT-LLM 1.3 with return_perf_metrics have one"
)


def read_traffic(name: str, window: str | None, folder: Path, notify: Notify) -> Readings:
    """Read the pages of ``live:URL[,URL…]``, and keep them below the folder, or those of ``metrics:``.

    Args:
        window: how long servers are watched, or the time between saved pages.

    Raises `BadInput`: no server answers, or there are no such pages.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", window or "1m")
    if match is None or not float(match[1]):
        raise BadInput(f"--window {window}: write a time above 0, such as 30s, 10m or 1h")
    seconds = float(match[1]) * 60 ** "smh".index(match[2])
    kind, _, rest = name.partition(":")
    if kind == "metrics":
        return _saved(rest, seconds if window else 0)
    readings = _watched(Target.parse(rest), seconds, notify)
    keep(readings, kept := folder / time.strftime("%Y%m%d-%H%M%S"))
    notify(f"the pages are kept: --workload metrics:{kept} reads them again")
    return readings


def keep(readings: Readings, folder: Path) -> None:
    """Write pages into a folder, which ``metrics:`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for at_s, page in readings.items():
        write_atomically(folder / f"{at_s:08.2f}.prom", page)


def _watched(target: Target, seconds: float, notify: Notify) -> Readings:
    """Read the servers' pages during a window; Ctrl-C ends it."""
    urls = ", ".join(one.url for one in target)
    notify(
        f"reading the metrics of {urls} for {seconds:g} s; Ctrl-C takes what there is until then"
    )
    # TensorRT-LLM's /metrics hands out each of its rows once: ask for the longer path first.
    paths = {card.serving.metrics_path for card in Library().engines.values()}
    readings = dict[float, str]()
    with ServerClient(target) as client:
        path = next(filter(client.metrics_text, sorted(paths, key=len, reverse=True)), "")
        begun_s = time.time()

        def read() -> float:
            page = client.metrics_text(path) if path else None
            if page is None:
                raise BadInput(f"{urls}: no metrics page; {_NEEDED}")
            readings[at_s := time.time() - begun_s if readings else 0.0] = page
            if len(readings) % (1 if seconds > 300 else 10) == 0:
                notify(f"{at_s:.0f} s of {seconds:g}")
            return at_s

        try:
            while (left_s := seconds - read()) > 0:
                time.sleep(min(left_s, max(0.5, seconds / 60)))
        except Terminated:
            raise
        except KeyboardInterrupt:
            notify("stopped: what there is so far is taken")
            read()
        with suppress(LookupError, TypeError):
            longest = client.get_json("/v1/models")["data"][0]["max_model_len"]
            readings[0.0] += f"# max_model_len {longest}\n"
    return readings


def _saved(rest: str, seconds: float) -> Readings:
    """Read a folder of `keep`, or saved pages: the first of a server, its last, and so on."""
    kept = sorted(Path(rest).glob("*.prom"))
    try:
        texts = [path.read_text() for path in kept or map(Path, rest.split(","))]
        if kept:
            return {float(path.stem): text for path, text in zip(kept, texts, strict=True)}
    except (OSError, ValueError) as error:
        raise BadInput(f"metrics:{rest}: a page cannot be read ({error})") from error
    if not seconds or len(texts) % 2:
        raise BadInput(
            f"metrics:{rest}: write two pages for each server, metrics:FIRST,LAST[,FIRST,LAST…], and "
            "the time between them, e.g. --window 10m; or a folder that live:URL has kept"
        )
    return {0.0: "\n".join(texts[::2]), seconds: "\n".join(texts[1::2])}


def workload_of(name: str, readings: Readings, *, searched: bool = False) -> Workload:
    """Make a workload of pages; its origin says what it stands on, and what counters cannot tell.

    `searched`: the load is set by something else, so all prompts are sent at once.

    Raises `BadInput` for pages of no engine, of a restart, or of too few requests.
    """
    (first, *_, last), (card, metrics), grew, rows = _grown(readings)
    seconds = max(readings)
    ended = grew[metrics.ended]
    if (np.diff(rows[:, 0]) < 0).any() or ended < _TOO_FEW:
        raise BadInput(
            f"{name}: {metrics.ended} grew by {ended:.0f} in {seconds:.0f} s, and {_TOO_FEW} are needed: "
            "a longer --window; if counters went back, a server was restarted, or servers behind one "
            "address take turns: name each, live:URL,URL"
        )
    longest = re.search(r"^# max_model_len (\d+)", readings[0.0], re.MULTILINE)
    most = int(longest[1]) if longest else 0
    notes = [f"{name}: {ended:,.0f} requests of {card.title} ended in {seconds:.0f} s"]
    read, written = tables = [_lengths(grew, card, metrics, kind, most, notes) for kind in _KINDS]
    arrived = float((rows[-1] - rows[0])[:2].sum())
    rate = max(arrived, ended) / seconds
    prompts = 1000 if searched else int(np.clip(rate * seconds, 100, 1000))
    burstiness, how = bursts(rows[:, :2].sum(axis=1), seconds)
    flying = rate * grew[f"{metrics.latency}_sum"] / max(grew[f"{metrics.latency}_count"], 1)
    prefix, share = _prefix(first, last, card, read, prompts)
    notes += [
        f"{rate:.3g} requests per second arrived, {how}; where a server keeps up, its throughput is "
        "that rate: compare latencies, or capacities with --find-load rate",
        f"in flight: {flying:.3g} by rate × latency, {rows[:, 1:].sum(axis=1).mean():.3g} by the "
        f"gauges; bench and simulate send a closed loop with --concurrency {max(1, round(flying))}",
        share,
        *_drafts(readings, card),
        "not in the counters: which answer belongs to which prompt (drawn apart), and which prompts "
        "share what (one group stands for all)",
    ]
    if (lost := (rows[-1] - rows[0]) @ [1, 0, -1] - ended) > 0.01 * ended:
        notes.append(f"{lost:,.0f} requests were cancelled; their lengths are in no histogram")
    if (more := (rows[-1] - rows[0])[1:].sum()) > 0.1 * ended:
        notes.append(
            f"{more:,.0f} more in flight at the end: a longer --window has long answers, too"
        )
    if (answers := grew[f"{metrics.samples}_sum"]) > 1.01 * grew[f"{metrics.samples}_count"]:
        notes.append(
            f"{answers:,.0f} answers were asked for, several at a time: each is a request here"
        )
    kind = "poisson" if burstiness == 1 else "gamma"
    arrival = {"kind": kind, "request_rate": float(f"{rate:.4g}"), "burstiness": burstiness}
    lengths = {
        "kind": "quantiles",
        "input_quantiles": read,
        "output_quantiles": written,
        "total_limit": most or math.ceil(sum(one[1.0] for one in tables)),
    }
    point = {"prompts": prompts, "arrival": {} if searched else arrival, "lengths": lengths}
    document = {"name": name, "description": notes[0], "origin": "\n".join(notes)}
    return Workload.model_validate({**document, "points": [point], "prefix": prefix})


def _grown(
    readings: Readings,
) -> tuple[list[FloatDict], tuple[EngineCard, TrafficMetrics], FloatDict, Floats]:
    """Return the sums of each page, their names, by how much they grew, and rows of the requests
    that began, wait and run."""
    pages = [sums(readings[at_s]) for at_s in sorted(readings)]
    card, metrics = _source(pages[-1])
    gauges = [card.serving.metrics.get(f"{kind}_requests", "") for kind in ("waiting", "running")]
    rows = np.array([[page[one] for one in (f"{metrics.began}_count", *gauges)] for page in pages])
    grew = {one: value - pages[0][one] for one, value in pages[-1].items()}
    return pages, (card, metrics), defaultdict(float, grew), rows


def _counts(grew: FloatMap, histogram: str | None) -> dict[float, float]:
    """Return the counts of a histogram's buckets by upper bound; none without it."""
    begin = f"{histogram}_bucket"
    held = {float(one[len(begin) :]): grew[one] for one in grew if one.startswith(begin)}
    bounds = sorted(held)
    return dict(zip(bounds, np.diff([0.0, *map(held.__getitem__, bounds)]), strict=True))


def _source(page: FloatMap) -> tuple[EngineCard, TrafficMetrics]:
    """Return the engine of a page and its names, those with histograms of lengths if it has them."""
    cards = Library().engines.values()
    known = [(card, one) for card in cards for one in card.serving.traffic_metrics]
    fitting = [pair for pair in known if pair[1].ended in page]
    if not fitting:
        raise BadInput(f"no request of an engine ended on the last page; {_NEEDED}")
    return max(fitting, key=lambda pair: f"{pair[1].prompt}_count" in page)


def _lengths(
    grew: FloatMap,
    card: EngineCard,
    metrics: TrafficMetrics,
    kind: str,
    most: int,
    notes: list[str],
) -> dict[float, float]:
    """Return quantiles of prompts or answers, up to `most` tokens, and note what they are."""
    histogram = metrics.prompt if kind == "prompt" else metrics.answer
    counts = _counts(grew, histogram)
    mean = grew.get(f"{histogram}_sum", 0.0) / max(sum(counts.values()), 1)
    if not counts:
        mean = grew.get(card.serving.metrics.get(f"{kind}_tokens", ""), 0.0) / grew[metrics.ended]
        counts = {4 * mean: 1.0}
        notes.append(
            f"only a mean of {kind} tokens is counted: they spread up to 4 times it; a histogram "
            "needs --collect-tokens-histogram for SGLang before 0.5.12"
        )
    if mean <= 0 or min(counts.values()) < 0:
        raise BadInput(
            f"the pages have no lengths, or those of servers with other bounds; {_NEEDED}"
        )
    table = law(counts, mean, most)
    p95 = np.interp(0.95, [*table], [*table.values()])
    notes.append(f"{kind} tokens: {mean:,.4g} on average, 95 % up to {p95:,.0f}")
    return table


def law(counts: Mapping[float, float], mean: float, longest: int = 0) -> dict[float, float]:
    """Return quantiles of lengths with these counts by upper bound, and this mean.

    The normal score of the cumulative share is linear in the logarithm of the length between two
    bounds, so that a lognormal law is met, and goes on beyond the outermost ones. Then the place
    within each bucket is raised to the one power that gives the mean. An open last bucket ends at
    the longest possible length, or at thrice its bound: vLLM leaves out bounds beyond the context.
    """
    from scipy.interpolate import make_interp_spline
    from scipy.special import ndtr, ndtri  # Half a second to load.

    each = np.array([*counts.values()])
    bounds = np.array([0.0, *counts])
    if math.isinf(bounds[-1]):
        bounds[-1] = longest or 3 * bounds[-2]
    shares = np.append(0.0, np.cumsum(each) / each.sum())
    edges = np.log(bounds + 0.5)
    known = (shares > 0) & (shares < 1)
    points, scores = edges[known], ndtri(shares[known])
    if len(points) < 2:
        points, scores = edges[[0, -1]], np.zeros(2)
    held = np.flatnonzero(each)
    place = np.linspace(1e-9, 1.0 - 1e-9, 17)[:, None]
    # The slope, which hardly counts elsewhere, spreads a bucket evenly where the scores do not rise.
    score = make_interp_spline(points, scores + 1e-3 * points, k=1)
    inner = ndtr(score(edges[held] + place * np.diff(edges)[held]))
    inner = (inner - inner[0] + 1e-9) / (inner[-1] - inner[0] + 1e-9)
    levels = (shares[held] + inner * np.diff(shares)[held]).T.ravel()
    levels[0] = 0.0
    # Bounds of the numbers that are rounded to a length of a bucket.
    ends = bounds[held] + 0.51, bounds[held + 1] + 0.49
    low, high = -30.0, 30.0
    for _ in range(50):
        power = (low + high) / 2
        spread = np.exp(edges[held] + place ** math.exp(power) * np.diff(edges)[held])
        lengths = np.clip(spread, *ends).T.ravel()
        low, high = (low, power) if np.trapezoid(lengths, levels) < mean else (power, high)
    return dict(zip(levels.tolist(), lengths.round(3).tolist(), strict=True))


def bursts(arrived: Floats, seconds: float) -> tuple[float, str]:
    """Return the shape of the gamma distribution of the gaps, by counts so far, and its origin.

    Over long intervals the variance of a renewal process' counts over their mean is the squared
    coefficient of variation of its gaps, one over the shape (Cox 1962, Renewal Theory).
    """
    each = np.diff(arrived)
    group = math.ceil(max(1.0, _PER_INTERVAL / max(each.mean(), 1e-3)))
    counts = np.diff(arrived[::group])
    if len(counts) < 10:
        return 1.0, f"Poisson assumed: {len(arrived)} readings tell no bursts"
    ratio = max(counts.var(ddof=1) / counts.mean(), 0.05)
    where = (
        f"{len(counts)} intervals of {seconds / len(each) * group:.2g} s (dispersion {ratio:.2g})"
    )
    if abs(ratio - 1) < 2 * math.sqrt(2 / (len(counts) - 1)):
        return 1.0, f"as a Poisson process as far as {where} tell"
    return float(f"{1 / ratio:.2g}"), f"with burstiness {1 / ratio:.2g} by {where}"


def _prefix(
    first: FloatMap,
    last: FloatMap,
    card: EngineCard,
    table: Mapping[float, float],
    prompts: int,
) -> tuple[Prefix | None, str]:
    """Return the prefix that gives the share of prompt tokens found in the prefix cache."""
    use = _cache_use(first, last, card)
    if use is None:
        return None, "the pages have no hits of the prefix cache: no shared prefix"
    said = f"{use.hit_rate:.1%} of the prompt tokens came from the prefix cache"
    read = np.interp(np.linspace(0.0005, 0.9995, 1000), [*table], [*table.values()])
    # With one group, the first prompt computes the prefix, and the others find it.
    hits = np.minimum.outer(read, read).mean(axis=0) - read / prompts
    tokens = round(float(np.interp(use.hit_rate * read.mean(), [0, *hits], [0, *read])))
    if not tokens:
        return None, f"{said}: no shared prefix"
    return Prefix(tokens=tokens, groups=1), (
        f"{said}: all prompts begin with the same {tokens:,} tokens, which gives that on a cache that "
        "is empty at first"
    )


def _cache_use(first: FloatMap, last: FloatMap, card: EngineCard) -> CacheUse | None:
    """Return the use of the prefix cache between two pages; None where they do not have it."""
    uses = ([counters(one, page) for page in (first, last)] for one in card.serving.cache_metrics)
    return next((CacheUse.between(*pair) for pair in uses if all(pair)), None)


def _drafts(readings: Readings, card: EngineCard) -> list[str]:
    """Return sentences on the drafts."""
    ends = [samples(readings[at_s]) for at_s in (0.0, max(readings))]
    known = card.serving.draft_metrics
    uses = (DraftUse.between(*(drafts_of_page(one, page) for page in ends)) for one in known)
    found = acceptance([use for use in uses if use][:1])
    return [f"{name.replace('_', ' ')}: {value:.3g}" for name, value in found.items()]


def carried(folder: Path) -> Metrics:
    """Return what servers carried between the first and the last page of a folder of `keep`, by
    their own counters; quantiles lie evenly within a bucket, as those of Prometheus."""
    readings = _saved(str(folder), 0)
    pages, (card, metrics), grew, rows = _grown(readings)
    seconds = max(readings)
    totals = (card.serving.metrics.get(f"{kind}_tokens", "") for kind in _KINDS)
    done, read, written = (grew[name] for name in (metrics.ended, *totals))
    found = {
        "duration": seconds,
        "completed": done,
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": done / seconds,
        "output_throughput": written / seconds,
        "total_token_throughput": (read + written) / seconds,
        "mean_concurrent_requests": float(rows[:, 1:].sum(axis=1).mean()),
    }
    if use := _cache_use(pages[0], pages[-1], card):
        found["cache_hit_rate"] = use.hit_rate
    latencies = {"ttft": metrics.began, "tpot": metrics.token, "e2el": metrics.latency}
    for name, histogram in latencies.items():
        counts = _counts(grew, histogram)
        if not (count := sum(counts.values())):
            continue
        found[f"mean_{name}_ms"] = 1e3 * grew[f"{histogram}_sum"] / count
        ends = [0.0, *counts]
        shares = np.cumsum([0.0, *counts.values()]) / count
        ends[-1] = ends[-2]
        for quantile, share in QUANTILES.items():
            found[f"{quantile}_{name}_ms"] = 1e3 * float(np.interp(share, shares, ends))
    return found
