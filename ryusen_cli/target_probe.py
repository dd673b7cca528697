"""Imports a target in a process of its own and tells what it found: user code may print, hang or end the process that imports it.

Run as a program it answers on the descriptor it is given; `probe` starts it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import msgspec

_IMPORT_S: Final = 30.0
_PROGRAM: Final = "import sys; sys.path[:0] = {path!r}; from ryusen_cli.target_probe import main; main(sys.argv[1], int(sys.argv[2]))"


class Found(msgspec.Struct, frozen=True):
    """What stands at a target, or why nothing does."""

    application: str = ""
    workspace: str = ""
    digest: str = ""
    functions: list[str] = []
    problem: str | None = None


def probe(target: str, within_s: float = _IMPORT_S) -> Found:
    """Import `target` from the current folder, in another process of the same interpreter."""
    reader, writer = os.pipe()
    program = _PROGRAM.format(path=[entry for entry in sys.path if entry])
    process = subprocess.Popen(  # noqa: S603 - this interpreter, and a target the person named
        [sys.executable, "-c", program, target, str(writer)],
        pass_fds=[writer],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return Found(problem=f"{target} does not import within {within_s:g} s")
        text = answer.read()
    try:
        return msgspec.json.decode(text, type=Found)
    except msgspec.MsgspecError:
        return Found(problem=f"{target} ended the process that imported it (exit code {process.returncode})")


def main(target: str, descriptor: int) -> None:
    """Answer on the descriptor. Small enough for a pipe that nobody reads yet."""
    from ryusen_sdk.errors import RyusenError
    from ryusen_sdk.target import load_target

    try:
        app = load_target(target)
        manifest = app.manifest()
        found = Found(app.application, app.workspace, manifest.digest, [str(function.id) for function in manifest.functions][:100])
    except RyusenError as error:
        found = Found(problem=str(error)[:8_000])
    os.write(descriptor, msgspec.json.encode(found))
