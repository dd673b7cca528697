"""Child processes: orders down, facts up, and nobody is left behind when the parent dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ryusen_cli.dev.messages import Away, Connect, Fact, Failed, Imported, Noted, Order, RunWorker
from ryusen_cli.dev.process import Child
from ryusen_cli.dev.spawn import HeadStart

ROOT = Path(__file__).parents[2]

ECHO = """
import os, sys
sys.path.append({root!r})
from ryusen_cli.dev.lifeline import Lifeline
from ryusen_cli.dev.messages import Noted
lifeline = Lifeline(int(sys.argv[2]), int(sys.argv[3]))
order = lifeline.await_order()
print("printed", flush=True)
print("no newline at the end", end="", flush=True)
lifeline.tell(Noted(f"{{order.target}} in group {{os.getpgid(0) == os.getpid()}}"))
"""


def script(text: str, role: str, control_fd: int, facts_fd: int) -> list[str]:
    return [sys.executable, "-c", text.format(root=str(ROOT)), role, str(control_fd), str(facts_fd)]


def order() -> Order:
    return RunWorker(target="shop.py", url="http://127.0.0.1:1")


def child() -> tuple[Child, list[Fact], list[str]]:
    facts: list[Fact] = []
    lines: list[str] = []
    return Child("shop", said=lambda _, fact: facts.append(fact), printed=lambda _, line: lines.append(line)), facts, lines


async def test_a_child_gets_its_order_and_is_heard_to_the_last_byte() -> None:
    one, facts, lines = child()
    await one.start("worker", lambda *arguments: script(ECHO, *arguments))
    one.order(order())
    assert await one.ended() == 0
    assert facts == [Noted("shop.py in group True")]
    assert lines == ["printed", "no newline at the end"]


async def test_a_child_that_is_not_needed_ends_by_itself() -> None:
    one, facts, _ = child()
    await one.start("worker")
    one.close()
    assert await one.ended() == 0
    assert facts == []


async def test_a_real_worker_child_says_why_its_target_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = nothing\n")
    monkeypatch.chdir(tmp_path)
    one, facts, _ = child()
    await one.start("worker")
    one.order(RunWorker(target="broken.py", url="http://127.0.0.1:1"))
    assert await one.ended() == 1
    assert len(facts) == 1
    assert isinstance(facts[0], Failed)
    assert facts[0].at_import
    assert "broken.py:2" in facts[0].message


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that loads, in the current folder."""
    (tmp_path / "shop.py").write_text('from ryusen_sdk import Ryusen\n\napp = Ryusen("shop")\n')
    monkeypatch.chdir(tmp_path)


async def heard_child() -> tuple[Child, asyncio.Queue[Fact]]:
    """A real worker child, told everything but where its server is."""
    facts: asyncio.Queue[Fact] = asyncio.Queue()
    one = Child("shop", said=lambda _, fact: facts.put_nowait(fact), printed=lambda *_: None)
    await one.start("worker")
    one.order(RunWorker(target="shop.py", url=None, publish=False))
    return one, facts


@pytest.mark.usefixtures("shop")
async def test_a_worker_imports_its_target_while_its_server_is_not_there_yet() -> None:
    one, facts = await heard_child()
    imported = await facts.get()
    assert isinstance(imported, Imported)
    assert imported.application == "shop"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        one.order(Connect(f"http://127.0.0.1:{nobody.getsockname()[1]}"))
        assert isinstance(await facts.get(), Away)  # so it went there
        one.drain()
        await one.ended()


@pytest.mark.usefixtures("shop")
async def test_a_worker_that_waits_for_its_server_ends_with_its_parent() -> None:
    one, facts = await heard_child()
    assert isinstance(await facts.get(), Imported)
    one.close()
    assert await one.ended() == -signal.SIGKILL


def test_a_head_start_is_given_to_dev_alone() -> None:
    for words in ([], ["serve"], ["worker", "dev"], ["dev", "--help"], ["dev", "-h"], ["dev", "shop.py", "--help"]):
        start = HeadStart()
        start.begin(words)
        assert start.take() is None


async def test_a_server_with_a_head_start_goes_to_one_owner_or_ends() -> None:
    start = HeadStart()
    start.begin(["dev", "shop.py"])
    start.begin(["dev", "shop.py"])  # one is enough
    spawned = start.take()
    assert spawned is not None
    assert start.take() is None
    start.drop()  # nothing is left to end
    assert spawned.process.poll() is None
    one, facts, _ = child()
    await one.adopt(spawned)
    one.close()
    assert await one.ended() == 0
    assert facts == []

    start.begin(["dev"])
    kept = start._server
    start.drop()
    assert kept is not None
    assert kept.process.returncode == -signal.SIGKILL


STUBBORN = """
import os, signal, subprocess, sys, time
sys.path.append({root!r})
from ryusen_cli.dev.lifeline import Lifeline
from ryusen_cli.dev.messages import Noted
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lifeline = Lifeline(int(sys.argv[2]), int(sys.argv[3]))
lifeline.await_order()
lifeline.guard()
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
lifeline.tell(Noted(f"{{os.getpid()}} {{grandchild.pid}}"))
while True:
    time.sleep(1)
"""

PARENT = """
import asyncio, sys
sys.path.append({root!r})
from ryusen_cli.dev.process import Child
from ryusen_cli.dev.messages import RunWorker

async def main():
    child = Child("x", said=lambda _, fact: print(fact.text, flush=True), printed=lambda *_: None)
    await child.start("worker", lambda role, control, facts: [sys.executable, "-c", {stubborn!r}, role, str(control), str(facts)])
    child.order(RunWorker(target="x", url="x"))
    await asyncio.sleep(600)

asyncio.run(main())
"""


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(20):
        while not all(gone(pid) for pid in pids):  # noqa: ASYNC110 - other processes set no event here
            await asyncio.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc which processes there are")
async def test_children_and_theirs_die_with_a_parent_that_is_killed() -> None:
    text = PARENT.format(root=str(ROOT), stubborn=STUBBORN.format(root=str(ROOT)))
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)  # noqa: ASYNC220 - nothing else runs meanwhile
    assert parent.stdout is not None
    with parent.stdout:
        line = await asyncio.to_thread(parent.stdout.readline)
        pids = [int(pid) for pid in line.split()]
        assert len(pids) == 2
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    await until_gone(*pids)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc which processes there are")
async def test_kill_takes_what_the_child_started_along() -> None:
    heard: asyncio.Queue[Fact] = asyncio.Queue()
    one = Child("x", said=lambda _, fact: heard.put_nowait(fact), printed=lambda *_: None)
    await one.start("worker", lambda *arguments: script(STUBBORN, *arguments))
    one.order(order())
    fact = await heard.get()
    assert isinstance(fact, Noted)
    one.drain()
    one.kill()
    assert await one.ended() == -signal.SIGKILL
    await until_gone(*(int(pid) for pid in fact.text.split()))
