"""Every command line of docs/ is run as it stands there."""

from __future__ import annotations

import pytest

from tests.documents.pages import all_examples
from tests.documents.running import check_page, pages_of
from tests.documents.world import World, shared_world

__all__ = ["shared_world"]

GUIDES = pages_of(all_examples(), lambda page: page.startswith("docs/"))


@pytest.mark.parametrize("page", GUIDES)
def test_the_commands_of_a_page_run(
    page: str, shared_world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_page(GUIDES[page], shared_world, tmp_path_factory.mktemp("page"))
