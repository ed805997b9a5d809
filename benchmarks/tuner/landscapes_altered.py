"""Made-up landscapes, and alterations of any other: of its prior, its truth or its names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from landscape import Absent, Landscape, believed, layout_of, study_of
from scipy.stats import rankdata

from autotune.engines.command import Configuration, Scalar
from autotune.engines.enumeration import Candidate, CandidateSet
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.library import Library
from autotune.tuner.search.gp.kernels import Encoding, Prior, is_size

_SLOWER = 0.5
"""What is left of a layout whose fast kernels are taken out."""
_MISPLACED_REGRET, _MISPLACED_SHARE = 0.15, 0.05
_WALL = 0.1
_HIDDEN = 0.3
_CRASHING = 0.2
_MEMORY = ("max_running_requests", "max_batched_tokens", "memory_fraction", "context_length")


def toy() -> Landscape:
    """24 candidates of one engine, for tests of the benchmark."""
    grid = itertools.product((1, 4, 8), (2048, 8192), (64, 1024), ("auto", "fp8"))
    items, truth = [], []
    for dp, tokens, running, kv in grid:
        knobs: dict[str, Scalar] = {
            "tensor_parallel": 8 // dp,
            "data_parallel": dp,
            "max_batched_tokens": tokens,
        }
        knobs |= {"max_running_requests": running, "kv_cache_dtype": kv}
        items.append(Candidate(Configuration("vllm", knobs), "0.11"))
        score = (
            -0.2 * (math.log2(dp) - 2) ** 2
            + 0.1 * (tokens == 8192)
            + 0.1 * math.log2(running / 64) * (dp > 1)
        )
        truth.append(
            math.nan
            if dp == 8 and running == 1024
            else 1000 * math.exp(score + 0.1 * (kv == "fp8"))
        )
    values = np.array(truth)
    prior = np.array(
        [0.1 * math.log2(float(str(i.configuration.knobs["max_running_requests"]))) for i in items]
    )
    spec = study_of("toy", "deepseek-ai/DeepSeek-R1-0528", ["vllm"])
    words = "24 made-up candidates; the prior knows one of five knobs"
    candidates = CandidateSet(tuple(items), 0, monotone_memory=Library().monotone_memory)
    return Landscape("toy", words, "useful", spec, candidates, values, (Prior("made up", prior),))


def needle() -> Landscape:
    """Two engines, 1,280 candidates; five conditions with a strong interaction and weak main
    effects."""
    grid = itertools.product(
        ("vllm", "sglang"),
        ((8, 1), (4, 2), (2, 4), (1, 8)),
        (1024, 2048, 4096, 8192, 16384),
        (64, 128, 256, 512),
        ("auto", "fp8"),
        ("plain", "fast"),
        (0, 1),
    )
    items, truth = [], []
    for engine, (tp, dp), tokens, running, kv, kernel, drafts in grid:
        knobs: dict[str, Scalar] = {
            "tensor_parallel": tp,
            "data_parallel": dp,
            "max_batched_tokens": tokens,
        }
        knobs |= {
            "max_running_requests": running,
            "kv_cache_dtype": kv,
            "kernel": kernel,
            "speculative_tokens": drafts,
        }
        items.append(Candidate(Configuration(engine, knobs), "1"))
        met = (
            (engine == "sglang")
            + (dp == 2)
            + (tokens == 2048)
            + (running == 512)
            + (kernel == "fast")
        )
        smooth = (
            0.10 * math.log2(tp) / 3
            + 0.06 * math.log2(tokens / 1024) / 4
            - 0.05 * drafts
            - 0.04 * (kv == "fp8")
        )
        truth.append(4000 * math.exp(smooth + 0.9 * (met / 5) ** 4))
    base = next(
        i for i, c in enumerate(items) if c.configuration.knobs["max_batched_tokens"] == 8192
    )
    spec = study_of("needle", "deepseek-ai/DeepSeek-R1-0528", ["vllm", "sglang"])
    words = "made up; the best lies in a corner where five knobs must agree, against the slopes; no prior"
    return Landscape(
        "needle", words, "none", spec, CandidateSet(tuple(items), base), np.array(truth)
    )


def plateau() -> Landscape:
    """2,880 candidates, the best of which differ by less than the noise; one exchange gains 40 %
    with large batches only."""
    grid = itertools.product(
        ("vllm", "sglang"),
        ((8, 1), (4, 2), (1, 8)),
        ("ring", "direct"),
        (2048, 4096, 8192, 16384, 32768),
        (64, 256, 1024, 2048),
        ("plain", "graph", "lazy"),
        ("auto", "fp8"),
        (16, 64),
    )
    items, truth = [], []
    for engine, (tp, dp), exchange, tokens, running, loop, kv, block in grid:
        knobs: dict[str, Scalar] = {
            "tensor_parallel": tp,
            "data_parallel": dp,
            "exchange": exchange,
            "loop": loop,
        }
        knobs |= {
            "max_batched_tokens": tokens,
            "max_running_requests": running,
            "kv_cache_dtype": kv,
            "block": block,
        }
        items.append(Candidate(Configuration(engine, knobs), "1"))
        filled = min(1.0, (math.log2(tokens) - 10 + math.log2(running) - 5) / 8)
        score = 0.5 * filled + 0.08 * (engine == "sglang") + 0.06 * (dp == 2)
        score += 0.01 * (kv == "fp8") + 0.005 * block / 64
        large = tokens >= 16384 and running == 2048
        truth.append(4000 * math.exp(score + (0.35 if large else -0.05) * (exchange == "direct")))
    base = next(
        i for i, c in enumerate(items) if c.configuration.knobs["max_batched_tokens"] == 8192
    )
    spec = study_of("plateau", "deepseek-ai/DeepSeek-R1-0528", ["vllm", "sglang"])
    words = "made up; a plateau of twins, and one exchange that is worth 40 % in large batches and costs 5 % elsewhere"
    return Landscape(
        "plateau", words, "none", spec, CandidateSet(tuple(items), base), np.array(truth)
    )


def overlooked() -> Landscape:
    """The plateau with a prior that has an error of 2 %, and predicts the exchange 20 % below the
    ring."""
    base = plateau()
    direct = np.array(
        [c.configuration.knobs["exchange"] == "direct" for c in base.candidates.items]
    )
    scores = np.log(base.truth)
    # Each candidate of the exchange stands 240 places behind the same one of the ring.
    error = 0.02 * np.random.default_rng(3).standard_normal(len(scores))
    prior = Prior("made up", np.where(direct, np.roll(scores, 240) - 0.2, scores) + error)
    words = "made up; the plateau with a prior that is right of everything but the exchange: it expects too little"
    return replace(base, name="overlooked", words=words, kind="misplaced", priors=(prior,))


def contradicted() -> Landscape:
    """A study of one H200 whose prior sees no difference between two attention backends, and a
    third more throughput with an FP8 cache.

    What launches showed of both (vLLM 0.26, a model of Qwen3-1.7B's shape, 27 November 2026;
    docs/simulator.md) is the truth: Triton's attention costs 16 % at large steps and 27 % at small
    ones, an FP8 cache changes throughput by -7 % and by +15 % with few requests, synchronous
    scheduling costs 8 %. Everything else is as today's simulator predicts it.
    """
    values: dict[str, tuple[Scalar, ...]] = {
        "attention_backend": ("FLASH_ATTN", "TRITON_ATTN"),
        "kv_cache_dtype": ("bfloat16", "fp8"),
        "max_running_requests": (1024, 64, 256, 512),
        "max_batched_tokens": (8192, 2048, 4096, 16384, 32768),
        "async_scheduling": (True, False),
        "api_server_count": (1, 4),
    }
    rows = [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]
    spec = study_of("contradicted", "Qwen/Qwen3-8B", ["vllm"], "random:1536:192:512")
    spec = spec.model_copy(update={"gpus": 1})
    items = tuple(Candidate(Configuration("vllm", row), spec.engines[0].version) for row in rows)
    # The first row is the engine's defaults; rows of one index over both are alike but for these.
    plain = np.arange(len(rows)) % (len(rows) // 4)
    fp8 = np.array([row["kv_cache_dtype"] == "fp8" for row in rows])
    candidates = CandidateSet(items, 0, monotone_memory=Library().monotone_memory)
    priors = []
    for prior in believed(spec, candidates, on="process"):
        mean = prior.mean[plain] + math.log(1.33) * fp8
        draws = None if prior.draws is None else prior.draws - prior.mean + mean
        priors.append(replace(prior, mean=mean, draws=draws))
    measured = np.array([_measured(row) for row in rows])
    truth = np.exp(priors[0].mean[plain]) * measured
    words = "one H200; the prior sees no effect of Triton's attention, which costs 16 to 27 %, and"
    words += " a third more with an FP8 cache, which is worth -7 to +15 %"
    return Landscape("contradicted", words, "misplaced", spec, candidates, truth, tuple(priors))


def _measured(knobs: Mapping[str, Scalar]) -> float:
    """Return the ratio of throughputs that launches showed of what the prior has wrong."""
    doublings = math.log2(float(knobs["max_batched_tokens"] or 0) / 2048)
    ratio = 0.73 + 0.11 * doublings / 4 if knobs["attention_backend"] == "TRITON_ATTN" else 1.0
    if knobs["kv_cache_dtype"] == "fp8":
        ratio *= 1.15 if knobs["max_running_requests"] == 256 else 0.93
    return ratio if knobs["async_scheduling"] else 0.92 * ratio


def hidden(base: Landscape, seed: int = 0) -> Landscape:
    """Multiply the truth by random effects that the prior does not have: the logarithms of main
    effects of all values and of interactions of all pairs of values have equal variances, and
    together a standard deviation of 0.3."""
    encoding = Encoding(base.candidates)
    generator = np.random.default_rng(seed)
    columns = encoding.codes[:, encoding.varying].T
    main, pairs = np.zeros((2, len(encoding)))
    for column in columns:
        main += generator.standard_normal(column.max() + 1)[column]
    for one, other in itertools.combinations(columns, 2):
        pairs += generator.standard_normal((one.max() + 1, other.max() + 1))[one, other]
    logs = main / main.std() + pairs / pairs.std()
    logs *= _HIDDEN / logs.std()
    words = f"{base.name}, times random effects and interactions of values, deviation {_HIDDEN}"
    return replace(base, words=words, kind="misplaced", truth=base.truth * np.exp(logs))


def misplaced(base: Landscape) -> Landscape:
    """Halve the throughput of the best layouts, one after the other, until the prior's favourite is
    far from the best."""
    truth = base.truth.copy()
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, item in enumerate(base.candidates.items):
        groups.setdefault(layout_of(item.configuration), []).append(position)
    taken: set[tuple[object, ...]] = set()
    changed = base
    while not taken or not _is_misplaced(changed):
        best = layout_of(base.candidates.items[int(np.nanargmax(truth))].configuration)
        if best in taken:
            break
        taken.add(best)
        truth[groups[best]] *= _SLOWER
        changed = replace(base, truth=truth.copy())
    words = f"{base.name}, with its {len(taken)} best layouts half as fast as they were: the prior puts the best elsewhere"
    return replace(changed, words=words, kind="misplaced")


def _is_misplaced(landscape: Landscape) -> bool:
    found = landscape.prior_quality()
    if found is None:
        return True
    far = found["rank_of_best"] > _MISPLACED_SHARE * len(landscape.candidates)
    return far and found["regret_of_top"] > _MISPLACED_REGRET


def walled(base: Landscape) -> Landscape:
    """The tenth of the candidates nearest to the best, which is one of them, does not start."""
    encoding = Encoding(base.candidates)
    best = int(np.nanargmax(base.truth))
    distance = np.zeros(len(encoding))
    for column, table in enumerate(encoding.distances):
        distance += table[:, encoding.codes[best, column]][encoding.codes[:, column]]
    distance[base.candidates.baseline] = np.inf
    inside = distance <= np.quantile(distance, _WALL)
    words = f"{base.name}; the {inside.sum()} candidates nearest to its best do not start"
    return replace(base, words=words, kind="walled", truth=np.where(inside, np.nan, base.truth))


def crashing(base: Landscape) -> Landscape:
    """A fifth of the candidates that started crashes: by single values, by pairs of values, or by a
    size above a limit."""
    generator = np.random.default_rng(20)
    encoding = Encoding(base.candidates)
    started = np.isfinite(base.truth)
    crashes = np.zeros(len(encoding), dtype=np.bool_)
    failures = dict(base.failures or {})
    causes = []
    for number in range(400):
        share = float((crashes & started).sum() / started.sum())
        if share >= _CRASHING - 0.01:
            break
        words, kind, hit = _cause(encoding, generator, number % 3)
        grown = float(((crashes | hit) & started).sum() / started.sum())
        # Each cause may take a share of its own; the baseline runs.
        if (
            hit[base.candidates.baseline]
            or grown - share < 0.02
            or grown > _CRASHING + 0.02
            or grown - share > 0.12
        ):
            continue
        failures |= {int(p): Failure(kind, words) for p in np.flatnonzero(hit & ~crashes)}
        crashes |= hit
        causes.append(words)
    words = f"{base.name}; {(crashes & started).sum() / started.sum():.0%} of what started crashes: {'; '.join(causes)}"
    truth = np.where(crashes, np.nan, base.truth)
    return replace(base, words=words, truth=truth, failures=failures)


def _cause(
    encoding: Encoding, generator: np.random.Generator, shape: int
) -> tuple[str, FailureKind, np.ndarray]:
    """Return a cause of crashes in words, its kind, and the candidates that it applies to."""
    names = [encoding.names[k] for k in encoding.varying]
    if shape == 2 and (sizes := [n for n in names if n in _MEMORY]):
        name = sizes[int(generator.integers(len(sizes)))]
        listed = [v for v in encoding.choices[name] if is_size(v)]
        size = listed[-1 - int(generator.integers(max(1, len(listed) // 2)))]
        other, value = _value(encoding, generator, [n for n in names if n != name])
        column = encoding.codes[:, encoding.names.index(name)]
        large = np.array([is_size(v) and float(v) >= float(size) for v in encoding.choices[name]])[
            column
        ]  # type: ignore[arg-type]
        return (
            f"{name}>={size} with {other}={value}",
            FailureKind.OUT_OF_MEMORY,
            large & _has(encoding, other, value),
        )
    name, value = _value(encoding, generator, names)
    if shape == 0:
        return f"{name}={value}", FailureKind.UNSUPPORTED, _has(encoding, name, value)
    other, second = _value(encoding, generator, [n for n in names if n != name])
    hit = _has(encoding, name, value) & _has(encoding, other, second)
    return f"{name}={value} with {other}={second}", FailureKind.CRASHED, hit


def _value(
    encoding: Encoding, generator: np.random.Generator, names: Sequence[str]
) -> tuple[str, Scalar]:
    name = names[int(generator.integers(len(names)))]
    values = [v for v in encoding.choices[name] if v is not None]
    return name, values[int(generator.integers(len(values)))]


def _has(encoding: Encoding, name: str, value: Scalar) -> np.ndarray:
    column = encoding.names.index(name)
    return np.asarray(encoding.codes[:, column] == encoding.choices[name].index(value))


def unknown_knobs(base: Landscape) -> Landscape:
    """Replace names and words by labels, and sizes by their ranks."""
    words = f"{base.name}; knobs and words renamed, sizes numbered by their order; no prior"
    return _renamed(base, words, keep_order=True)


def relabelled(base: Landscape) -> Landscape:
    """Replace every name and every value by a label, sizes too."""
    words = (
        f"{base.name}; knobs and all values, sizes too, renamed to labels without order; no prior"
    )
    return _renamed(base, words, keep_order=False)


def _renamed(base: Landscape, words: str, *, keep_order: bool) -> Landscape:
    generator = np.random.default_rng(7)
    encoding = Encoding(base.candidates)
    knobs = list(encoding.names[1:])
    letters = [f"knob_{chr(97 + int(i))}" for i in generator.permutation(len(knobs))]
    labels: dict[str, Mapping[Scalar, Scalar]] = {}
    for name in encoding.names:
        present = [v for v in encoding.choices[name] if v is not None]
        order = generator.permutation(len(present))
        ordered = keep_order and name != "engine" and all(is_size(v) for v in present)
        # `True` and 1 are one key: a column has either sizes or switches.
        labels[name] = {v: i + 1 if ordered else f"v{order[i]}" for i, v in enumerate(present)}
    items = []
    for item in base.candidates.items:
        own = item.configuration
        values = {new: labels[old][v] for new, old in zip(letters, knobs, strict=True)
                  if (v := own.knobs.get(old)) is not None}  # fmt: skip
        items.append(Candidate(Configuration(str(labels["engine"][own.engine]), values), "1"))
    candidates = CandidateSet(
        tuple(items), base.candidates.baseline, base.candidates.defaults, base.candidates.starts
    )
    return replace(base, words=words, kind="none", candidates=candidates, priors=())


def reversed_prior(base: Landscape) -> Landscape:
    """Reverse the prior's order of the candidates that start; the others get its median."""
    believed = (
        base.priors[0].mean
        if base.priors
        else np.log(np.where(np.isfinite(base.truth), base.truth, 1.0))
    )
    runs = np.isfinite(base.truth)
    values = np.sort(believed[runs])
    wrong = np.full(len(base.truth), float(np.median(values)))
    wrong[runs] = values[(rankdata(-base.truth[runs], method="ordinal") - 1).astype(int)]
    words = f"{base.name}; the prior's values are handed out in the reversed order of the truth"
    return replace(base, words=words, kind="reversed", priors=(Prior("reversed", wrong),))


def shuffled(base: Landscape) -> Landscape:
    """Permute the prior's values among the candidates that start."""
    runs = np.flatnonzero(np.isfinite(base.truth))
    mean = (base.priors[0].mean if base.priors else np.log(base.truth)).copy()
    mean[runs] = mean[np.random.default_rng(4).permutation(runs)]
    words = f"{base.name}; the prior's values are handed out by lot"
    return replace(base, words=words, kind="reversed", priors=(Prior("shuffled", mean),))


def calibrated(base: Landscape) -> Landscape:
    """Take the priors of a study of real servers: the simulator with the packaged figures, and
    physics with nothing fitted."""
    priors = believed(
        base.spec.model_copy(update={"calibration": None}), base.candidates, on="process"
    )
    if not priors or priors[0].name == "physics":
        raise Absent("this version of autotune believes physics alone")
    words = (
        f"{base.words.split('; prior:')[0]}; prior: the simulator with the packaged coefficients"
    )
    return replace(base, words=words, priors=priors)


def words(base: Landscape) -> Landscape:
    """Take the priors of a replayed table, whose words the engines' cards translate."""
    priors = believed(
        base.spec.model_copy(update={"calibration": None}), base.candidates, on="replay:table.csv"
    )
    return replace(
        base, words=f"{base.words.split('; prior:')[0]}; prior: of a replayed table", priors=priors
    )


def partial_words(base: Landscape) -> Landscape:
    """As `words`, with cache types that no card knows: SGLang's rows with bfloat16 alone have a
    prior."""
    items = []
    for item in base.candidates.items:
        own, cache = item.configuration, item.configuration.knobs["kv_cache_dtype"]
        known = own.engine == "sglang" and cache == "bfloat16"
        items.append(
            item
            if known
            else replace(item, configuration=own.with_knobs(kv_cache_dtype=f"cache of {cache}"))
        )
    found = words(replace(base, candidates=replace(base.candidates, items=tuple(items))))
    known = np.isfinite(found.priors[0].mean).mean() if found.priors else 0.0
    return replace(found, words=f"{found.words}, {known:.0%} of which are in the cards' words")


def noisy(base: Landscape) -> Landscape:
    """5 % noise per launch."""
    return replace(base, words=f"{base.name} with 5 % noise per launch", noise=0.05)


MADE_UP: dict[str, Callable[[], Landscape]] = {
    "toy": toy,
    "needle": needle,
    "plateau": plateau,
    "overlooked": overlooked,
    "contradicted": contradicted,
}
ALTERED: dict[str, tuple[str, Callable[[Landscape], Landscape]]] = {
    "calibrated": ("kernels-r1", calibrated),
    "hidden": ("calibrated:v32", hidden),
    "misplaced": ("calibrated:v32", misplaced),
    "walled": ("calibrated:v32", walled),
    "crashing": ("calibrated:v32", crashing),
    "unknown-knobs": ("v32", unknown_knobs),
    "relabelled": ("r1", relabelled),
    "reversed": ("v32", reversed_prior),
    "shuffled": ("v32", shuffled),
    "noisy": ("calibrated:v32", noisy),
    "words": ("kernels-r1", words),
    "partial-words": ("kernels-r1", partial_words),
}
"""By name: the default base, and the alteration."""
