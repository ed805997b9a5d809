"""How a command with many options shows them: in groups, with examples."""

from __future__ import annotations

import click

GROUPS = {
    "What to serve": ("model", "model_id", "hardware", "gpus", "engines"),
    "What to improve": (
        *("workloads", "speedup", "objective", "weights", "pareto", "slos", "find_load", "goodput"),
        "baseline",
    ),
    "What to measure besides": ("accuracy", "ladder", "gpu_hour_price"),
    "What may be tried": ("pins", "engine_args", "min_context", "allow", "space", "sampler", "sources"),
    "How much": ("launches", "hours", "seed", "noise"),
    "Where launches run": (
        *("on", "executor", "engine_bins", "images", "fetch"),
        *("api_key_env", "api_key_file", "hf_token_file", "calibration"),
    ),
    "The study": ("study", "dry_run", "home", "as_json"),
}
"""Heading to the options of ``autotune run`` under it, by parameter; others follow at the end."""

EXAMPLES = """\
\b
Examples:
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --dry-run
  autotune run --model deepseek-ai/DeepSeek-V3.2 --hw h200 --engine vllm --launches 12
  autotune run --model deepseek-ai/DeepSeek-R1 --hw mi300x --workload long --slo 'p99_ttft_ms<=20000'
  autotune run --model ./my-model --hw local --on process --baseline 'vllm serve ./my-model -tp 8'
"""


class GroupedCommand(click.Command):
    """A command that lists its options under the headings of `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups in their order, and what is in none as *Other options*."""
        rows = {p.name: row for p in self.get_params(ctx) if (row := p.get_help_record(ctx)) is not None}
        grouped = {name for names in GROUPS.values() for name in names}
        groups = {**GROUPS, "Other options": tuple(name for name in rows if name not in grouped)}
        for heading, names in groups.items():
            listed = [rows[name] for name in names if name in rows]
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)
