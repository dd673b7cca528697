"""One server with runs of every kind, for all tests that only look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tui.stage import HOSTILE, Stage, stage


class Gallery(NamedTuple):
    """The server and the runs that are there to look at."""

    stage: Stage
    failed: str
    blocked: str
    unknown: str
    attempt: str


@pytest.fixture(scope="package")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    folder: Path = tmp_path_factory.mktemp("gallery")
    with stage(folder) as made:
        made.ended(made.run_of("order/placed", {"order": 1}))
        failed = made.run_of("order/placed", {"fail": f"no carrier {HOSTILE}"})
        made.ended(failed)
        blocked = made.run_of("twice", {})
        made.until(blocked, lambda run: run["blocker"] is not None)
        made.run_of("nap", {})
        made.product.send(HOSTILE, {"text": HOSTILE})
        unknown, attempt = made.make_unknown("gallery")
        yield Gallery(made, failed, blocked, unknown, attempt)
