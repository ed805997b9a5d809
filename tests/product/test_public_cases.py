"""Commands, request files and results that people posted, and those of our own collection, are read
as a practitioner expects."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.product.cli import SHARED
from tests.product.public_cases import Case, cases, outcome_of


def _marked(name: str) -> list[ParameterSet]:
    """Mark the cases that are wrong today: one that became right fails until its ``not_yet`` is
    removed."""
    listed = []
    for case in cases(name):
        mark = pytest.mark.xfail(strict=True, reason=case.not_yet)
        listed.append(pytest.param(case, id=case.id, marks=[mark] if case.not_yet else []))
    return listed


def _check(case: Case, home: Path) -> None:
    outcome = outcome_of(case, home)
    assert outcome.verdict == "right", outcome.read


@pytest.mark.parametrize("case", _marked("public"))
def test_what_people_posted_is_read(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path)


@pytest.mark.skipif(not (SHARED / "data" / "cases").is_dir(), reason="no collection of cases here")
@pytest.mark.parametrize("case", _marked("given"))
def test_our_collection_is_read(case: Case, tmp_path: Path) -> None:
    _check(case, tmp_path)
