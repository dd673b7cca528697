"""Browsers and shops for the tests of the pages. Without Chromium every test that needs it is left out, and `tests/conftest.py` says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import CHROMIUM, Shop, chromium, shop


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: the web pages are not tested")
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def the_shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One shop for the tests of a module."""
    with shop(tmp_path_factory.mktemp("shop"), browser) as made:
        yield made


@pytest.fixture
def at(the_shop: Shop) -> Iterator[Shop]:
    """The module's shop, with tabs of this test alone."""
    the_shop.allowed = ()
    the_shop.faults.clear()
    yield the_shop
    the_shop.close()
    the_shop.check()
