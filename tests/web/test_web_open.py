"""`ryusen dev --open` opens the pages of the server it has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ryusen_cli.dev.browser import open_pages
from tests.cli.processes import Running

APP = """
from ryusen_sdk import Event, Ryusen, SyncStep

app = Ryusen("shop")

@app.function(on="order/placed")
def fulfil(event: Event, step: SyncStep) -> str:
    return step.run("first", str, "first")
"""


def test_dev_opens_the_pages_once_the_server_answers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\nprintf "%s" "$1" > "$(dirname "$0")/opened"\n')
    browser.chmod(0o755)
    dev = Running(tmp_path, "dev", "--open", "--port", "0", "--ephemeral", "--json", BROWSER=f"{browser} %s")
    try:
        line = dev.until("opened http")
    finally:
        dev.end()
    assert (tmp_path / "opened").read_text() in line


def test_without_a_browser_the_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert open_pages("http://127.0.0.1:1") == "no browser here; the pages are at http://127.0.0.1:1"
