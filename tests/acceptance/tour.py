"""Types what a document tells its reader to type, in a folder of its own, and puts what comes out in the place of what stood there.

`python -m tests.acceptance.tour` does so with README.md and docs/unknown.md; a test holds both to what the product prints, but for ids,
times and the like. In a fenced block, lines that begin with `$ ` are typed. `ryusen dev` goes on beside the rest. Ids and process numbers
in a command stand for the last ones of their kind that were printed.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = ("README.md", "docs/unknown.md")
PATIENCE_S: Final = 60.0

_FENCE: Final = re.compile(r"^```[a-z]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"^`([\w-]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ID: Final = re.compile(r"\b(rn|ev|at|wi|rg|mg|op|rq)_[A-Za-z0-9]+")
_PROCESS: Final = re.compile(r"\bprocess (\d+)")
_VARIES: Final = (
    (_ID, r"\1_"),
    (_PROCESS, "process N"),
    (re.compile(r"kill -9 \d+"), "kill -9 N"),
    (re.compile(r"sha256:[0-9a-f]+"), "sha256:"),
    (re.compile(r"dev-[0-9a-f]+"), "dev-"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+[+-]\d{4}"), "INSTANT"),
    (re.compile(r"\d\d:\d\d:\d\d\.\d+"), "TIME"),
    (re.compile(r"\b(\d+(\.\d+)?(ms|h|m|s))+\b"), "DURATION"),
    (re.compile(r"^listening +http://\[::1\].*\n", re.MULTILINE), ""),
    (re.compile(r"[ \t]+"), " "),
)
_LOOKS: Final = re.compile(r"ryusen \w+ (ls|show)\b")
"""Commands that a person types again until they show what is waited for: what the document shows, or what is worth being shown."""
_WORTH: Final = {"ryusen unknown ls": "at_", "ryusen runs show": "process|took"}
_LOOK_S: Final = 20.0


def plain(text: str) -> str:
    """A text without what differs from one time to the next."""
    for pattern, stands in _VARIES:
        text = pattern.sub(stands, text)
    return text


class Terminals:
    """A reader at work: one terminal with `ryusen dev`, and one for everything else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shown = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RYUSEN_")}
        self._environment = {
            **clean, "RYUSEN_PORT": str(self._port), "RYUSEN_URL": f"http://127.0.0.1:{self._port}", "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "PYTHONUTF8": "1",
        }  # fmt: skip
        self._dev: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._reader: threading.Thread | None = None
        self._last: dict[str, str] = {}

    def close(self) -> None:
        if self._dev is None or self._reader is None:
            return
        self._dev.send_signal(signal.SIGINT)
        try:
            self._dev.wait(PATIENCE_S)
        finally:
            self._dev.kill()
            self._reader.join(PATIENCE_S)

    def type(self, command: str, shown: str) -> tuple[str, str]:
        """The command as it was typed, with today's ids, and what it printed. `shown` is what the document says it prints."""
        command = _ID.sub(lambda found: self._last.get(found[1], found[0]), command)
        if command.startswith("kill "):
            command = f"kill -9 {self._last['process']}"
        printed = self._run(command, shown)
        for found in _ID.finditer(printed):
            self._last[found[1]] = found[0]
        for found in _PROCESS.finditer(printed):
            self._last["process"] = found[1]
        return command, printed

    def _run(self, command: str, shown: str) -> str:
        if command.startswith("mkdir"):
            self.folder /= shlex.split(command)[1]
            self.folder.mkdir()
            return ""
        if command.startswith("kill "):
            os.kill(int(command.rsplit(maxsplit=1)[-1]), signal.SIGKILL)
            return ""
        if command.startswith("ryusen dev"):
            return self._start(command)
        worth = next((pattern for start, pattern in _WORTH.items() if command.startswith(start)), "")
        until = time.monotonic() + (_LOOK_S if _LOOKS.match(command) else 0)
        while True:
            done = subprocess.run(
                [sys.executable, "-m", "ryusen_cli", *shlex.split(command)[1:]], cwd=self.folder, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            printed = self._as_told(done.stdout)
            is_there = plain(printed).strip() == plain(shown).strip() if shown else re.search(worth, printed) is not None
            if is_there or time.monotonic() > until:
                return printed
            time.sleep(0.1)

    def _start(self, command: str) -> str:
        dev = subprocess.Popen(
            [sys.executable, "-m", "ryusen_cli", *shlex.split(command)[1:]], cwd=self.folder, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._dev = dev

        def read() -> None:
            with dev.stdout or open(os.devnull) as stream:  # noqa: PTH123 - the type checker's other case
                self._lines.extend(stream)

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        until = time.monotonic() + PATIENCE_S
        while not any(line.startswith("next step") for line in self._lines):
            if time.monotonic() > until or dev.poll() is not None:
                raise AssertionError("".join(self._lines))
            time.sleep(0.02)
        return self._as_told("".join(line for line in self._lines if not line.startswith("ryusen | ")))

    def _as_told(self, printed: str) -> str:
        """What a reader sees who has the usual port, and the folder where it is."""
        inside = f" --url http://127.0.0.1:{self._port}"
        return printed.replace(inside, "").replace(f":{self._port}", ":7878").replace(f"{self._shown}{os.sep}", "")


def typed(document: str, folder: Path) -> str:
    """The document with what comes out today."""
    terminals = Terminals(folder.resolve())
    for name, source in _FILE.findall(document):
        (terminals.folder / name).write_text(source, encoding="utf-8")
    try:
        return _FENCE.sub(lambda fence: _block(fence, terminals), document)
    finally:
        terminals.close()


def _block(fence: re.Match[str], terminals: Terminals) -> str:
    if not fence[1].startswith("$ "):
        return fence[0]
    parts: list[str] = []
    for asked in fence[1].removeprefix("$ ").split("\n$ "):
        command, _, shown = asked.partition("\n")
        command, printed = terminals.type(command, shown)
        parts.append(f"$ {command}\n{printed}".rstrip("\n") + "\n")
    between = "" if all(part.count("\n") == 1 for part in parts[:-1]) else "\n"
    return "```\n" + between.join(parts) + "```"


def main() -> None:
    """Write the documents anew."""
    for name in DOCUMENTS:
        path = ROOT / name
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(typed(path.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
