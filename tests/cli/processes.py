"""Commands as a person runs them: real processes, and their lines as they come."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ryusen_cli.main import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(ROOT)!r}); from ryusen_cli.main import run; run()"]
PATIENCE_S = 60.0


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RYUSEN_")}
    return {**clean, "PYTHONUTF8": "1", "HOME": "/nonexistent", **more}


class Running:
    """A long-running command, its lines as they come."""

    def __init__(self, folder: Path, *arguments: str, **more: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._readers = [threading.Thread(target=self._read, args=(stream,)) for stream in (self.process.stdout, self.process.stderr)]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any) -> None:
        with stream:
            for line in stream:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def until(self, text: str) -> str:
        """The next line that holds the text."""
        deadline = time.monotonic() + PATIENCE_S
        ends = 0
        while ends < 2:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                ends += 1
                continue
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r} in:\n" + "\n".join(self.lines))

    def ready(self) -> dict[str, Any]:
        return json.loads(self.until('"status":"ready"'))

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join()
        return code


@contextmanager
def running(folder: Path, *arguments: str, **more: str) -> Iterator[Running]:
    one = Running(folder, *arguments, **more)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.end()


def ryusen(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def asked(*arguments: str) -> Any:
    """The document of a command that is run in this process, which is quicker."""
    with redirect_stdout(io.StringIO()) as out:
        code = main([*arguments, "--json"])
    assert code == 0, out.getvalue()
    return json.loads(out.getvalue())


def send(url: str) -> Any:
    return asked("send", "order/placed", "-d", "{}", "--wait", "--url", url)


def said(receipt: dict[str, Any]) -> list[str]:
    return sorted(run["result"]["value"]["said"]["value"] for run in receipt["runs"])


def write(path: Path, text: str) -> None:
    """Saves as editors do: a new file takes the old one's place."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def role(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[4].decode()


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc which processes there are")
