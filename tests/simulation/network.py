"""Simulated TCP between two processes: bytes keep their order or are cut off, never anything else.

A `Wire` joins two ends. It delays, resets (each side is told after a while, what is under way may be lost), or goes silent: both sides keep
an open connection over which nothing comes any more, and find out by their own deadlines. A message is framed in five bytes in
place of a WebSocket's frame; `FramedProtocol` is to the server's connection what the WebSocket library is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from tests.simulation.scheduling import Process, SimulatedLoop

_OPCODES = {opcode.value: opcode for opcode in Opcode}


def framed(opcode: Opcode, data: bytes) -> bytes:
    """One message as bytes."""
    return bytes((opcode,)) + len(data).to_bytes(4, "big") + data


def unframed(data: bytes) -> list[tuple[Opcode, bytes]]:
    """The messages of one read, which is always whole ones."""
    found: list[tuple[Opcode, bytes]] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        found.append((_OPCODES[data[at]], data[at + 5 : at + 5 + size]))
        at += 5 + size
    return found


class Conditions:
    """How the network behaves now. Delays are milliseconds one way."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.delay_ms_max = 5
        self.slow = 0.0
        """The share of messages that take up to a hundred times as long."""

    def delay_s(self) -> float:
        longest = self.delay_ms_max * 100 if self.slow and self.chance.random() < self.slow else self.delay_ms_max
        return longest * self.chance.random() / 1000


class Receiver(Protocol):
    """What an end of a wire hands its bytes to."""

    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


class Wire:
    """One connection between a worker's process and the server's."""

    def __init__(self, loop: SimulatedLoop, conditions: Conditions, worker: Process, server: Process) -> None:
        self.loop = loop
        self.conditions = conditions
        self.is_silent = False
        self.worker = End(self, worker)
        self.server = End(self, server)
        self.worker.peer, self.server.peer = self.server, self.worker

    @property
    def is_open(self) -> bool:
        """Whether at least one side still has it open."""
        return not (self.worker.is_gone and self.server.is_gone)

    def reset(self, *, lose: bool) -> None:
        """Both sides are told that it is gone; `lose` takes what is under way along."""
        for end in (self.worker, self.server):
            end.is_deaf = end.is_deaf or lose
            end.told_lost(ConnectionResetError("reset"))

    def go_silent(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        self.is_silent = True
        for end in (self.worker, self.server):
            end.is_deaf = True


class End(asyncio.Transport):
    """One side's socket."""

    peer: End

    def __init__(self, wire: Wire, process: Process) -> None:
        super().__init__()
        self._wire = wire
        self.process = process
        self.receiver: Receiver | None = None
        self.is_gone = False
        self.is_deaf = False
        self._is_closing = False
        self._is_paused = False
        self._unread: list[bytes] = []
        self._latest = 0.0
        self._lost_told = False
        self._wrote_eof = False

    # what its owner calls

    def write(self, data: Any) -> None:
        if self._is_closing or self._wrote_eof or self._wire.is_silent:
            return
        self._wire.loop.call_at(self._arrival(), self.peer._arrived, bytes(data), context=self.peer.process.context)

    def _arrival(self) -> float:
        self._latest = max(self._latest, self._wire.loop.time() + self._wire.conditions.delay_s())
        return self._latest

    def abort(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._wire.loop.call_soon(self._lost, None, context=self.process.context)
        if not self._wire.is_silent:
            self._wire.loop.call_at(self._arrival(), self.peer._lost, ConnectionResetError("reset"), context=self.peer.process.context)

    def close(self) -> None:
        self.abort()

    def write_eof(self) -> None:
        if self._is_closing or self._wrote_eof or self._wire.is_silent:
            return
        self._wrote_eof = True
        self._wire.loop.call_at(self._arrival(), self.peer._ended, context=self.peer.process.context)

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        unread, self._unread = self._unread, []
        for data in unread:
            self._arrived(data)

    # what happens to it

    def _arrived(self, data: bytes) -> None:
        if self.is_gone or self.is_deaf or self._is_closing or self.receiver is None:
            return
        if self._is_paused:
            self._unread.append(data)
        else:
            self.receiver.data_received(data)

    def _ended(self) -> None:
        """The peer sends no more: this side closes too."""
        if not self.is_gone and not self.is_deaf:
            self.abort()

    def told_lost(self, error: Exception | None) -> None:
        """It will learn, a little later, that the connection is gone."""
        delay = self._wire.conditions.delay_s()
        self._wire.loop.call_later(delay, self._lost, error, context=self.process.context)

    def _lost(self, error: Exception | None) -> None:
        if self._lost_told:
            return
        self._lost_told = True
        self._is_closing = True
        self.is_gone = True
        if self.receiver is not None:
            self.receiver.connection_lost(error)


class FramedProtocol:
    """What the server's connection asks of a WebSocket, over five-byte frames."""

    def __init__(self) -> None:
        self.state = State.OPEN
        self.parser_exc: Exception | None = None
        self.close_rcvd: object = None
        self._events: list[Frame] = []
        self._out: list[bytes] = []

    def receive_data(self, data: bytes) -> None:
        for opcode, content in unframed(data):
            self._events.append(Frame(opcode, content))
            if opcode is Opcode.PING:
                self._out.append(framed(Opcode.PONG, content))
            elif opcode is Opcode.CLOSE:
                self.close_rcvd = "closed"
                if self.state is State.OPEN:
                    self._out.append(framed(Opcode.CLOSE, b""))
                self.state = State.CLOSED
                self._out.append(b"")

    def receive_eof(self) -> None:
        self.state = State.CLOSED

    def events_received(self) -> list[Frame]:
        events, self._events = self._events, []
        return events

    def send_text(self, frame: bytes) -> None:
        if self.state is not State.OPEN:
            raise InvalidState("the connection is closing")
        self._out.append(framed(Opcode.TEXT, frame))

    def send_ping(self, data: bytes) -> None:
        self._out.append(framed(Opcode.PING, data))

    def send_close(self, code: int, reason: str) -> None:
        del code, reason
        self.state = State.CLOSING
        self._out.append(framed(Opcode.CLOSE, b""))

    def data_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        return out


class WorkerSocket:
    """The worker's connection, in place of the SDK's: bytes to messages, and `closed` when it is over."""

    def __init__(self, end: End, owner: Any, loop: SimulatedLoop) -> None:
        self._end = end
        self._owner = owner
        self._loop = loop
        self._close_sent = False
        self._is_discarded = False
        self._orderly = False
        self._failure: Exception | None = None
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        self.received_at = loop.time()
        end.receiver = self

    def send(self, frames: Any) -> None:
        data = b"".join(framed(Opcode.TEXT, frame) for frame in frames)
        if data and not self._close_sent:
            self._end.write(data)

    def ping(self) -> None:
        if not self._close_sent:
            self._end.write(framed(Opcode.PING, b""))

    def close(self) -> None:
        if not self._close_sent:
            self._close_sent = True
            self._end.write(framed(Opcode.CLOSE, b""))
        self._loop.call_later(2.0, self.abort, None)

    def abort(self, why: Exception | None) -> None:
        self._is_discarded = True
        self._failure = self._failure or why
        self._end.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_discarded:
            return
        self.received_at = self._loop.time()
        batch: list[bytes] = []
        for opcode, content in unframed(data):
            match opcode:
                case Opcode.TEXT:
                    batch.append(content)
                case Opcode.PING:
                    self._end.write(framed(Opcode.PONG, content))
                case Opcode.CLOSE:
                    self._orderly = True
                    if not self._close_sent:
                        self._close_sent = True
                        self._end.write(framed(Opcode.CLOSE, b""))
                    self._loop.call_later(2.0, self.abort, None)
                case _:
                    pass
        if batch:
            self._owner.messages(batch)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_discarded = True
        if not self.closed.done():
            why = self._failure or error
            self.closed.set_result(why or (None if self._orderly else ConnectionError("the server closed the connection")))


Accept = Callable[[Wire], None]
