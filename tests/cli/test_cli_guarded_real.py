"""A guarded server, and real commands that each hold no more than they need: deploying, running, sending, watching."""

from __future__ import annotations

import io
import json
import signal
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ryusen_cli.main import main
from tests.api.token_holders import HOLDERS, token, write_credentials
from tests.cli.processes import running, ryusen

APP = """
from ryusen_sdk import Event, Ryusen, Step

app = Ryusen("shop")


@app.function(on="order/placed", id="fulfil")
async def fulfil(event: Event, step: Step):
    return await step.run("charge", lambda: 7)
"""
GUARD = ("--credentials", "credentials.toml", "--port", "0", "--json")


def project(folder: Path) -> None:
    write_credentials(folder / "credentials.toml")
    (folder / "shop.py").write_text(APP)


def call(url: str, holder: str | None, *words: str) -> tuple[int, Any]:
    """A command run in this process, which is quicker."""
    as_whom = () if holder is None else ("--token", token(holder))
    with redirect_stdout(io.StringIO()) as out:
        code = main([*words, "--url", url, *as_whom, "--json"])
    return code, json.loads(out.getvalue())


def publish(folder: Path, url: str, holder: str) -> tuple[int, Any]:
    done = ryusen("apps", "publish", "shop.py", "--url", url, "--token", token(holder), "--json", cwd=folder)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.req("MAN-17", "SEC-03")
def test_a_manifest_goes_live_by_a_deliberate_act_and_not_by_a_worker(tmp_path: Path) -> None:
    project(tmp_path)
    with running(tmp_path, "serve", *GUARD) as server:
        url = server.ready()["addresses"][0]
        assert call(url, None, "apps", "ls")[1]["code"] == "unauthorized"
        assert publish(tmp_path, url, "runner")[1]["code"] == "forbidden"
        with running(tmp_path, "worker", "shop.py", "--url", url, RYUSEN_TOKEN=token("runner")) as worker:
            worker.until("does not allow this")
            assert worker.process.wait(30) == 5, "who may only run work publishes nothing, not even at a start"
        assert call(url, "reader", "apps", "ls") == (0, {"items": [], "next_cursor": None})
        code, published = publish(tmp_path, url, "deployer")
        assert (code, published["status"]) == (0, "created")
        assert publish(tmp_path, url, "deployer") == (0, {**published, "status": "current"})
        with running(tmp_path, "worker", "shop.py", "--url", url, RYUSEN_TOKEN=token("runner")) as worker:
            worker.until("registered at")
            code, sent = call(url, "everything", "send", "order/placed", "-d", "{}", "--wait")
            assert code == 0, sent
            assert call(url, "sender", "send", "order/placed", "-d", "{}")[0] == 0
            for words in (("send", "order/placed", "-d", "{}", "--wait"), ("runs", "ls"), ("events", "ls")):
                code, refused = call(url, "sender", *words)
                assert (code, refused["code"]) == (5, "forbidden"), words
        (head,) = call(url, "reader", "apps", "ls")[1]["items"]
        assert head["manifest_generation"] == published["manifest_generation"]
        write_credentials(tmp_path / "credentials.toml", {"reader": HOLDERS["observer"]})
        server.process.send_signal(signal.SIGHUP)
        server.until("credentials read again: 1 tokens")
        assert call(url, "reader", "apps", "ls")[1]["code"] == "forbidden"
        assert call(url, "everything", "apps", "ls")[1]["code"] == "unauthorized"


def test_dev_hands_its_token_to_its_workers_and_its_report(tmp_path: Path) -> None:
    project(tmp_path)
    with running(tmp_path, "dev", "shop.py", *GUARD, RYUSEN_TOKEN=token("everything")) as dev:
        assert [worker["application"] for worker in dev.ready()["workers"]] == ["shop"]
    with running(tmp_path, "dev", "shop.py", *GUARD, RYUSEN_TOKEN=token("runner")) as dev:
        dev.until("what the server has cannot be shown")


def test_what_is_published_says_where(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with running(tmp_path, "serve", "--port", "0", "--json") as server:
        url = server.ready()["addresses"][0]
        first = ryusen("apps", "publish", "shop.py", "--url", url, cwd=tmp_path)
        assert first.stdout.startswith("shop  published\nmanifest  mg_"), first.stderr
        assert ryusen("apps", "publish", "shop.py", "--url", url, cwd=tmp_path).stdout.startswith(
            "shop  current already, nothing published"
        )
        elsewhere = ryusen("apps", "publish", "shop.py", "--url", url, "--workspace", "other", cwd=tmp_path)
        assert (elsewhere.returncode, "belongs to workspace 'default'" in elsewhere.stderr) == (2, True)
        nothing = ryusen("apps", "publish", "missing.py", "--url", url, cwd=tmp_path)
        assert (nothing.returncode, "there is no file missing.py" in nothing.stderr) == (1, True)
