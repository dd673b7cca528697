"""The files of the pages as the server gives them: gated like everything else, harmless, complete, and saying what terminals say."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from ryusen_protocol import words
from ryusen_server.web.site import PAGES, POLICY, site
from tests.api.api_harness import api_server
from tests.api.token_holders import write_credentials

STATIC = resources.files("ryusen_server.web").joinpath("static")
SOURCES = {entry.name: entry.read_text() for entry in STATIC.iterdir() if entry.name.endswith((".js", ".html", ".css", ".svg"))}


@pytest.mark.req("UI-01")
async def test_every_page_and_file_is_served_behind_the_gate_and_runs_nothing_else(tmp_path: Path) -> None:
    async with api_server(tmp_path, memory=True) as api:
        for template in site():
            path = template.replace("{id}", "an%20id")
            answer = await api.client.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
            assert (await api.client.head(path)).headers["content-length"] == str(len(answer.content))
            assert (await api.client.get(path, headers={"host": "evil.example"})).status_code == 421
            assert (await api.client.get(path, headers={"origin": "http://evil.example"})).status_code == 403
            refused = await api.client.post(path, json={})
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD"), path
        for path in ("/nothing", "/assets/nothing.js", "/assets/../site.py", "/runs/", "/runs/a/b"):
            assert (await api.client.get(path)).status_code == 404, path


async def test_files_hold_nothing_secret_so_whoever_has_no_token_yet_gets_them(tmp_path: Path) -> None:
    credentials = write_credentials(tmp_path / "credentials.toml")
    async with api_server(tmp_path, memory=True, credentials=credentials) as api:
        assert (await api.client.get("/")).status_code == 200
        assert (await api.client.get("/assets/app.js")).status_code == 200
        assert (await api.client.get("/v1/workspaces/default/runs")).status_code == 401


@pytest.mark.req("UI-01")
def test_the_pages_need_nothing_from_elsewhere_and_turn_no_text_into_markup() -> None:
    markup = re.compile(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|createContextualFragment|\beval\(|new Function|srcdoc"
    )
    for name, text in SOURCES.items():
        elsewhere = [found for found in re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) if "www.w3.org" not in found]
        assert elsewhere == [], name
        assert markup.search(text) is None, name
        for imported in re.findall(r'(?:from|import) "([^"]+)"', text):
            assert imported.removeprefix("./") in {*SOURCES, "words.js"}, f"{name} imports {imported}"
    assert set(PAGES) <= set(site())
    preloaded = set(re.findall(r'modulepreload" href="/assets/([a-z.]+)"', SOURCES["index.html"]))
    assert preloaded == {name for name in {*SOURCES, "words.js"} if name.endswith(".js") and name != "app.js"}


def test_the_words_of_the_pages_are_the_table_of_every_screen() -> None:
    text = site()["/assets/words.js"].body.decode()
    table = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    for family, known in (
        ("outcomes", words.OUTCOMES),
        ("attempts", words.ATTEMPTS),
        ("steps", words.STEPS),
        ("targets", words.TARGETS),
        ("attention", words.ATTENTION),
        ("expansions", words.EXPANSIONS),
    ):
        assert table[family] == {fact: {"glyph": word.glyph, "text": word.text, "tone": word.tone} for fact, word in known.items()}
