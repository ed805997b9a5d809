"""The table of searched knobs is the one that the cards give."""

from __future__ import annotations

import pytest

from scripts import knob_table


@pytest.mark.e2e
def test_the_table_is_up_to_date() -> None:
    assert knob_table.PAGE.read_text(encoding="utf-8") == knob_table.page(), (
        "python scripts/knob_table.py writes it again"
    )
