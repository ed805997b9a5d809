"""Print the card of a model for ``search_spaces/models/`` from its ``config.json``.

    python scripts/model_card.py FOLDER --id ORG/NAME > search_spaces/models/name.yaml
    python scripts/model_card.py FOLDER --id ORG/NAME --into search_spaces/models/name.yaml

A card is the facts of the file, without zeros and defaults, and where they are from. What a file
does not say (`acceptance`, `engines`, comments before them) is kept from a card that is there.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import yaml

from autotune.engines.cards import ModelCard
from autotune.engines.config_json import model_from_file

_OWN = re.compile(r"^(#.*\n)*(acceptance|engines):\n( .*\n|#.*\n)*", re.MULTILINE)
"""A part of a card that no ``config.json`` has, with the comment before it."""


def card_text(card: ModelCard, kept: str = "", note: str = "") -> str:
    """Return a card as YAML: its architecture in flow style, the kept parts, the source."""
    name = card.id.rpartition("/")[2]
    figures = card.architecture.model_dump(mode="json", exclude_defaults=True)
    # A group is known by its mixer, also where that is the class's default.
    mixers = [{"mixer": group.mixer} for group in card.architecture.layer_groups]
    if mixers:
        figures["layer_groups"] = [
            a | b for a, b in zip(mixers, figures["layer_groups"], strict=True)
        ]
    flow = yaml.safe_dump(figures, default_flow_style=True, sort_keys=False, width=118)
    lines = [
        f"id: {card.id}",
        f"aliases: [{', '.join(dict.fromkeys([name, *card.aliases]))}]",
        f"family: {card.family}",
        f"architectures: [{', '.join(card.architectures)}]",
        "architecture:",
        *(f"  {line.strip()}" for line in flow.strip().splitlines()),
        *([f"unpredicted: {card.unpredicted}"] if card.unpredicted else []),
    ]
    source = f"https://huggingface.co/{card.id}/blob/main/config.json"
    source = yaml.safe_dump({"source": f"{source}; {note}" if note else source}, width=1000)
    return "\n".join(lines) + f"\n{kept}{source}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a checkpoint's folder")
    parser.add_argument("--id", required=True, help="its name on the Hub, ORG/NAME")
    parser.add_argument("--into", type=Path, help="the file to write, whose own parts are kept")
    parser.add_argument("--note", default="", help="words after the address of the source")
    asked = parser.parse_args()
    kept = ""
    if asked.into is not None and asked.into.is_file():
        kept = "".join(match[0] for match in _OWN.finditer(asked.into.read_text()))
    read = model_from_file(asked.folder / "config.json").with_fields(id=asked.id, aliases=[])
    text = card_text(read, kept, asked.note)
    if asked.into is None:
        print(text, end="")
    else:
        asked.into.write_text(text)


if __name__ == "__main__":
    main()
