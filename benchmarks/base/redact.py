"""The time that it takes to look for secrets in the worst texts: seconds for 8 MB, and those for 4
MB.

Texts are repetitions of up to two of `FRAGMENTS`, behind each of `BEGINS`: all of them at 50 kB,
then the slowest at full size. Of a linear pattern the whole takes twice as long as half of it, of a
quadratic one four times as long.
"""

from __future__ import annotations

import argparse
from itertools import product
from time import process_time

from autotune.base import redact

BEGINS = ("", "--", "api_key=${", "Bearer ", "https://")
FRAGMENTS = (
    *(
        "a",
        "ac",
        "9",
        "é",
        "_",
        "-",
        ".",
        "--",
        " ",
        "\n",
        "\t",
        "- ",
        "=",
        ":",
        ",",
        "'",
        '"',
        "@",
        "/",
        "://",
        "${",
        "}",
    ),
    *(
        "api",
        "key",
        "token",
        "eos",
        "secret",
        "password",
        "credential",
        "Bearer",
        "hf_",
        "sk-",
        "ghp_",
        "nvapi-",
        "AKIA",
    ),
    *("QWxhZGRpbjpvcGVuIHNlc2FtZQ", "api_key=a ", "--api-key a ", "token: a ", "hf_aaaaaaaa9 "),
)
LOG = "INFO 11-23 10:00:07 [loggers.py:123] Engine 000: Avg prompt throughput: 91.2 tokens/s, GPU KV cache usage: 3.1%\n"


def seconds(begin: str, unit: str, size: int) -> float:
    """CPU seconds for one text of so many characters."""
    text = begin + unit * (size // len(unit))
    started = process_time()
    redact.text(text)
    return process_time() - started


def main() -> None:
    """Print a row for each of the slowest texts, and one for an ordinary log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=15, help="texts that are tried at full size")
    parser.add_argument("--mb", type=int, default=8)
    options = parser.parse_args()
    units = dict.fromkeys([*FRAGMENTS, *map("".join, product(FRAGMENTS, repeat=2))])
    texts = list(product(BEGINS, units))
    slowest = sorted(texts, key=lambda text: -seconds(text[0], text[1], 50_000))[: options.texts]
    print(
        f"{len(texts)} texts of 50 kB; of the slowest CPU seconds for {options.mb} MB, and times those for half of it"
    )
    size = options.mb * 1_000_000
    for begin, unit in [*slowest, ("", LOG)]:
        half, whole = seconds(begin, unit, size // 2), seconds(begin, unit, size)
        print(f"{whole:6.2f} s  x{whole / half:.1f}  {begin!r} + {unit[:40]!r} repeated")


if __name__ == "__main__":
    main()
