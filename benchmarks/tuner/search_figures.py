"""What the runs of `search.py` come to: medians and quartiles, the targets beside them, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SHARES = (0.90, 0.95, 0.98)
MEDIAN, WORST_QUARTILE = {"useful": 6, "misplaced": 10, "walled": 12, "none": 20}, {"useful": 10}
"""By what a landscape's prior is worth: launches to 98 % of the best, baseline included, that are
aimed at."""
REVERSED_MORE = 3
"""With an adversarial prior at most so many launches more than without one."""

Told = Mapping[str, Any]


def launches_to(share: float, qualities: Sequence[float]) -> int | None:
    """The number of the first launch, from 1, that reached a share of the best; None = none did."""
    return next((number for number, quality in enumerate(qualities, 1) if quality >= share), None)


def regret(qualities: Sequence[float], launches: int) -> float:
    """What the best of the first launches falls short of the best there is."""
    return 1 - max(qualities[:launches])


def quartiles(values: Sequence[float | None]) -> list[float | None]:
    """The three quartiles; no interpolation, the upper one of two neighbours; None = never, and
    comes last."""
    ordered = sorted(values, key=lambda value: (value is None, value))
    last = len(ordered) - 1
    return [ordered[-(-last * quarter // 4)] for quarter in (1, 2, 3)]


def _share(runs: Sequence[Sequence[float]]) -> float:
    """Return the share of runs that made a launch of 98 % of the best."""
    return sum(max(qualities) >= SHARES[-1] for qualities in runs) / len(runs)


def summarised(told: Told) -> list[dict[str, Any]]:
    """One row per landscape and sampler."""
    groups: dict[tuple[str, str], list[Told]] = {}
    for run in told["runs"]:
        groups.setdefault((run["landscape"], run["sampler"]), []).append(run)
    rows = []
    for (landscape, sampler), runs in groups.items():
        row: dict[str, Any] = {"landscape": landscape, "sampler": sampler, "seeds": len(runs)}
        row["to"] = {
            f"{s:.2f}": quartiles([launches_to(s, r["qualities"]) for r in runs]) for s in SHARES
        }
        budgets = [k for k in told["budgets"] if k <= told["launches"][sampler]]
        row["regret"] = {
            str(k): quartiles([regret(r["qualities"], k) for r in runs]) for k in budgets
        }
        row["share"] = {
            str(k): _share([r["qualities"][:k] for r in runs])
            for k in (30, 40)
            if k <= max(budgets)
        }
        served = [1 - r["recommended"][str(budgets[-1])] for r in runs]
        row["served"] = {
            "within_2": sum(short <= 0.02 for short in served),
            "mean": sum(served) / len(runs),
            "worst": max(served),
        }
        row["recommended"] = {
            str(k): quartiles([1 - r["recommended"][str(k)] for r in runs]) for k in budgets
        }
        rows.append(row)
    for row in rows:
        row["target"] = _target(row, told["landscapes"][row["landscape"]]["kind"], rows)
    return rows


def _target(row: Told, kind: str, rows: Sequence[Told]) -> str:
    """What is aimed at for ours, and whether it is reached; empty for the others."""
    _, median, worst = row["to"]["0.98"]
    if row["sampler"].startswith("ours") and row["sampler"].endswith("no-prior"):
        kind = "none"
    elif not row["sampler"].startswith("ours"):
        return ""
    if kind == "reversed":
        without = next((r for r in rows if _same(r, row)), None)
        if without is None:
            return ""
        limit = without["to"]["0.98"][1]
        # Who never gets there without a prior cannot be worse with a bad one.
        return (
            "never without: reached"
            if limit is None
            else _told([(median, limit + REVERSED_MORE, "")])
        )
    limits = [(median, MEDIAN[kind], "")]
    return _told(
        [*limits, (worst, WORST_QUARTILE[kind], "q3 ")] if kind in WORST_QUARTILE else limits
    )


def _same(row: Told, other: Told) -> bool:
    return bool(
        row["landscape"] == other["landscape"] and row["sampler"] == f"{other['sampler']}-no-prior"
    )


def _told(limits: Sequence[tuple[float | None, float, str]]) -> str:
    reached = all(value is not None and value <= limit for value, limit, _ in limits)
    return f"{', '.join(f'{what}≤{limit:g}' for _, limit, what in limits)}: {'reached' if reached else 'missed'}"


def _launches(found: Sequence[float | None], longest: int) -> str:
    low, middle, high = (f">{longest}" if value is None else f"{value:g}" for value in found)
    return f"{middle} ({low}–{high})"


def _percent(found: Sequence[float] | None) -> str:
    if found is None:
        return "–"
    low, middle, high = (f"{100 * value:.0f}" for value in found)
    return f"{middle} ({low}–{high})"


def _cells(row: Told, told: Told) -> list[str]:
    reached = [_launches(found, told["launches"][row["sampler"]]) for found in row["to"].values()]
    share = " ".join(f"{100 * found:.0f}" for found in row["share"].values())
    served = f"{row['served']['within_2']}, {100 * row['served']['mean']:.1f}, {100 * row['served']['worst']:.0f}"
    short = [
        _percent(row[what].get(str(k)))
        for what in ("regret", "recommended")
        for k in told["budgets"]
    ]
    return [*reached, share, served, *short]


def _heads(told: Told) -> list[str]:
    reached = [f"to {100 * share:.0f} %" for share in SHARES]
    budgets = told["budgets"]
    short = [f"{what} {k}" for what in ("visited", "served") for k in budgets]
    return [*reached, "98 % by 30 40", "served ≤2 %", *short]


def _facts(name: str, landscape: Told) -> str:
    """A landscape in one line."""
    f = landscape["figures"]
    said = (
        f"{name}: {landscape['words']}. {f['candidates']} candidates, {f['fail']:.0%} do not start, "
        f"{f['within_10_percent']} within 10 % of the best and {f['within_2_percent']} within 2 %; the baseline has "
        f"{f['baseline']:.0%} of it; the best is {'a' if f['best_is_a_start'] else 'no'} shipped good start"
    )
    if f["spearman"] is None:
        return f"{said}."
    return (
        f"{said}. Prior: Spearman {f['spearman']:.2f}, the best is its number {f['rank_of_best']:.0f}, its own "
        f"favourite falls {f['regret_of_top']:.0%} short."
    )


def _about(told: Told) -> str:
    seeds = ", ".join(f"{name} {count}" for name, count in told["seeds"].items())
    versions = ", ".join(f"{name} {number}" for name, number in told["versions"].items())
    return (
        "Launches (the baseline is the first) until one is truly so near the best; then percent short of the best: "
        f"what was visited, and what would be served. Medians (quartiles). Seeds: {seeds}. {versions}."
    )


def as_text(told: Told) -> str:
    """Tables for a terminal."""
    return "\n".join(_text(told))


def _text(told: Told) -> Iterator[str]:
    yield from ("", _about(told))
    for name, landscape in told["landscapes"].items():
        yield from ("", _facts(name, landscape))
        yield f"{'':19s}" + "".join(f"{head:>16s}" for head in _heads(told))
        for row in (r for r in told["summary"] if r["landscape"] == name):
            cells = "".join(f"{cell:>16s}" for cell in _cells(row, told))
            yield f"{row['sampler']:19s}{cells}  {row['target']}"
    yield from (f"skipped {name}: {why}" for name, why in told["skipped"].items())


def as_markdown(told: Told) -> str:
    """Tables for the documentation."""
    lines = [_about(told), ""]
    for name, landscape in told["landscapes"].items():
        lines += [f"**{name}**{_facts(name, landscape).removeprefix(name)}", ""]
        lines += [
            f"| sampler | {' | '.join(_heads(told))} | target |",
            "|---" * (len(_heads(told)) + 2) + "|",
        ]
        for row in (r for r in told["summary"] if r["landscape"] == name):
            lines.append(
                f"| {row['sampler']} | {' | '.join(_cells(row, told))} | {row['target']} |"
            )
        lines.append("")
    lines += [f"Not run: {name} ({why})." for name, why in told["skipped"].items()]
    return "\n".join(lines).rstrip()
