"""What the documents show is what the product prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.tour import DOCUMENTS, ROOT, plain, typed


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_reader_who_types_what_stands_there_sees_what_stands_there(tmp_path: Path, name: str) -> None:
    document = (ROOT / name).read_text(encoding="utf-8")
    assert plain(typed(document, tmp_path)) == plain(document), "run `make tour`, and read what has changed"
