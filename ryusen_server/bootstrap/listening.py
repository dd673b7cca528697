"""Takes the port before anything else happens: a server that cannot be reached must not touch the database.

Sockets listen from the moment they are bound. Two that are only bound can share a port, and would find out too late.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from pathlib import Path
from typing import Final

from ryusen_protocol.words import printable
from ryusen_server.bootstrap.settings import StartRefused

BACKLOG: Final = 1_024
_PORT_TRIES: Final = 20
_LOOPBACK: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_NOT_THERE: Final = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))
_LISTENING: Final = "0A"
_COMMAND_CHARACTERS_MAX: Final = 60
_OWN_PROGRAM: Final = re.compile(r"\bryusen_cli\b|\bryusen (?:serve|dev)\b")

_Address = tuple[int, str]


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address the host names. Raises `StartRefused`, with nothing left open.

    `127.0.0.1` and `localhost` stand for the loopback of both families: a browser sent to localhost may try either first, and must not
    meet another program there. A family this machine does not have is left out.
    """
    addresses = _addresses(host)
    for left in reversed(range(_PORT_TRIES)):
        sockets: list[socket.socket] = []
        try:
            for family, address in addresses:
                chosen = sockets[0].getsockname()[1] if sockets and port == 0 else port
                with contextlib.ExitStack() as undo:
                    bound = undo.enter_context(
                        socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
                    )  # asyncio switches delays off only for what says TCP
                    _bind(bound, address, chosen)
                    undo.pop_all()
                sockets.append(bound)
        except OSError as error:
            if error.errno in _NOT_THERE and sockets:
                return sockets
            for bound in sockets:
                bound.close()
            if port == 0 and sockets and error.errno == errno.EADDRINUSE and left:
                continue  # free in one family and taken in the other: another one, then
            raise StartRefused(_why(error, host, port)) from error
        else:
            return sockets
    raise AssertionError("the last try returns or raises")


def base_url(bound: socket.socket) -> str:
    """Where the socket answers."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine reaches the socket."""
    host: str = bound.getsockname()[0]
    return host == "::1" or host.startswith("127.")


def _addresses(host: str) -> list[_Address]:
    if host in {"127.0.0.1", "localhost"}:
        return list(_LOOPBACK)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"the host {printable(host)} names no address of this machine ({error}); choose another --host") from error
    addresses = dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found)
    return [address for address in addresses if address[0] in {socket.AF_INET, socket.AF_INET6}]


def _bind(bound: socket.socket, address: str, port: int) -> None:
    bound.settimeout(0)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if bound.family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    bound.bind((address, port))
    bound.listen(BACKLOG)


def _why(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            holder = _holder(port)
            by = "" if holder is None else f" by {holder}"
            return f"port {port} is already in use{by}; stop that program or choose another port with --port"
        case errno.EACCES | errno.EPERM:
            return f"port {port} needs privileges this user does not have; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{printable(host)} is not an address of this machine, so port {port} cannot be opened there; choose another --host"
        case _:
            return f"port {port} on {printable(host)} cannot be opened: {error.strerror}; choose another --host or --port"


def _holder(port: int) -> str | None:
    """The program that listens on the port, where the system tells."""
    try:
        inodes = {inode for table in ("tcp", "tcp6") for inode in _listeners(Path("/proc/net") / table, port)}
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and inodes and _owns(process, inodes):
                command = (process / "cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace").strip()
                if _OWN_PROGRAM.search(command):
                    return f"another Ryusen server, process {process.name}"
                return f"process {process.name} ({printable(command[:_COMMAND_CHARACTERS_MAX])})"
    except OSError:
        pass
    return None


def _listeners(table: Path, port: int) -> list[str]:
    if not table.exists():
        return []
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _owns(process: Path, inodes: set[str]) -> bool:
    try:
        return any(_link(descriptor) in {f"socket:[{inode}]" for inode in inodes} for descriptor in (process / "fd").iterdir())
    except OSError:  # another user's, or gone
        return False


def _link(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)  # noqa: PTH115 - it is no path
    except OSError:
        return ""
