"""A TCP proxy that does what networks do: cuts, resets, truncates, goes silent, delays and repeats, at a byte the plan names.

Every connection gets one plan from a seeded source. Knows nothing of what it carries, but keeps the bytes of both directions where it is
asked to, so that a test can tell what each side has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

Fault = Literal["cut", "reset", "truncate", "silence", "delay", "repeat", "turn away"]
Direction = Literal["up", "down"]
"""Up goes to who listens behind the proxy."""

_CHUNK_BYTES = 16_384
_HANDS = 64


class Plan(NamedTuple):
    """What becomes of a connection when `at_byte` bytes have gone in a direction. `repeated` bytes come twice, `delay_ms` is waited."""

    fault: Fault
    direction: Direction
    at_byte: int
    delay_ms: int = 0
    repeated: int = 0


class Wire:
    """One connection through the proxy, with what each side sent and what of it arrived."""

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan
        self.struck = False
        """Whether the plan has come to its byte."""
        self.asked = bytearray()
        self.arrived = bytearray()
        self.answered = bytearray()
        self.delivered = bytearray()


class Proxy:
    """Listens, and carries to the port `upstream`. `plans` gives each connection its plan, or none; `struck` counts what came true."""

    def __init__(self, port: int, plans: Callable[[], Plan | None], *, keeps: bool) -> None:
        self.port = 0
        self.wires: list[Wire] = []
        self.struck: Counter[str] = Counter()
        self.upstream = port
        self._plans = plans
        self._keeps = keeps
        self._listener: socket.socket
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listen, at the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def shut(self) -> None:
        """Refuse connections; those that stand go on. Whoever is connected already is accepted first, or would be in doubt of it."""
        self._accept()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    async def close(self) -> None:
        """End it all."""
        self.shut()
        await asyncio.sleep(0)  # every connection has begun, and ends by itself
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                task = asyncio.create_task(self._accepted(self._listener.accept()[0]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _accepted(self, connection: socket.socket) -> None:
        wire = Wire(self._plans())
        if self._keeps:
            self.wires.append(wire)
        try:
            reader, writer = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        try:
            await self._carry(wire, reader, writer)
        finally:
            writer.close()

    async def _carry(self, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if wire.plan is not None and wire.plan.fault == "turn away":
            self._strike(wire)
            _reset(writer)
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            return
        try:
            ways = [
                asyncio.create_task(self._way(wire, "up", reader, up_writer, writer)),
                asyncio.create_task(self._way(wire, "down", up_reader, writer, up_writer)),
            ]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (ConnectionError, _Ended):
            pass
        finally:
            up_writer.close()

    async def _way(
        self, wire: Wire, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        gone, gone_for = 0, wire.plan
        sent, arrived = (wire.asked, wire.arrived) if direction == "up" else (wire.answered, wire.delivered)
        while chunk := await source.read(_CHUNK_BYTES):
            if self._keeps:
                sent += chunk
            plan = wire.plan
            if plan is not gone_for:
                gone, gone_for = 0, plan
            if plan is not None and not wire.struck and plan.direction == direction and gone + len(chunk) > plan.at_byte:
                before, chunk = chunk[: plan.at_byte - gone], chunk[plan.at_byte - gone :]
                await self._pass(before, arrived, sink)
                self._strike(wire)
                if self._keeps and plan.fault in ("cut", "reset", "truncate", "silence"):
                    await _hear_out(sent, source)
                await self._do(plan, bytes(before), arrived, sink, back)
                if plan.fault == "truncate":
                    break
                gone += len(before)
                if not self._keeps:
                    # The connection goes on, and so does its bad luck.
                    wire.plan, wire.struck = self._plans(), False
            await self._pass(chunk, arrived, sink)
            gone += len(chunk)
        with contextlib.suppress(OSError):  # it may be gone by now
            sink.write_eof()

    async def _pass(self, data: bytes, arrived: bytearray, sink: asyncio.StreamWriter) -> None:
        if data:
            sink.write(data)
            if self._keeps:
                arrived += data
            await sink.drain()

    async def _do(self, plan: Plan, before: bytes, arrived: bytearray, sink: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        match plan.fault:
            case "cut":
                raise _Ended
            case "reset":
                _reset(sink)
                _reset(back)
                raise _Ended
            case "truncate":
                pass  # this way ends here, as if its sender had finished; the other one goes on
            case "silence":
                await asyncio.sleep(plan.delay_ms / 1000)
                raise _Ended
            case "delay":
                await asyncio.sleep(plan.delay_ms / 1000)
            case "repeat":
                await self._pass(before[-plan.repeated :], arrived, sink)
            case "turn away":
                raise AssertionError("turned away before a byte")

    def _strike(self, wire: Wire) -> None:
        wire.struck = True
        assert wire.plan is not None
        self.struck[wire.plan.fault] += 1


async def _hear_out(sent: bytearray, source: asyncio.StreamReader) -> None:
    """Read what the side that is cut off still sends of its message, so that a test knows which one it was."""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.5):
            while message_of(sent) is None and (chunk := await source.read(_CHUNK_BYTES)):
                sent += chunk


def message_of(data: bytes | bytearray) -> bytes | None:
    """The first HTTP message in the bytes, head and body, if all of it is there."""
    head, end, _ = bytes(data).partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *([0-9]+)", head)
    if not end or length is None:
        return None
    size = len(head) + len(end) + int(length[1])
    return bytes(data[:size]) if len(data) >= size else None


class _Ended(Exception):
    """The connection ends here."""


def _reset(writer: asyncio.StreamWriter) -> None:
    bare = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def drawn(chance: random.Random, faults: list[Fault], *, up_bytes: int, down_bytes: int, silence_ms: int) -> Plan:
    """One plan. The byte is anywhere from the first to the last that the two directions usually have."""
    direction: Direction = chance.choice(("up", "down"))
    fault = chance.choice(faults)
    return Plan(
        fault,
        direction,
        0 if fault == "turn away" else chance.randrange(up_bytes if direction == "up" else down_bytes),
        silence_ms if fault == "silence" else chance.randrange(20, 200),
        chance.randrange(1, _HANDS),
    )


@asynccontextmanager
async def proxy(port: int, plans: Callable[[], Plan | None], *, keeps: bool = False) -> AsyncGenerator[Proxy, None]:
    made = Proxy(port, plans, keeps=keeps)
    made.open()
    try:
        yield made
    finally:
        await made.close()
