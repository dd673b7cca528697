"""Registration of a worker: what is checked, in which order, and what a reconnecting worker's word proves.

| the frame | answer |
|---|---|
| another protocol major or value codec | rejected `unsupported_contract` |
| an id that is none, repeated functions, a capacity below 1, longer words than are kept | rejected `invalid` |
| the name of a configured endpoint | rejected `invalid` |
| an older connection than the live session's | rejected `replaced` |
| a release known with another contract | rejected `release_conflict` |
| else | registered; a live session of the instance is replaced |

Then, for every attempt authorized for the instance: held, its lease is renewed; not held, though it was sent on the previous
session and only on that, it never began. Everything else runs on its lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import msgspec

from ryusen_protocol import PROTOCOL_VERSION, VALUE_CODEC_VERSION
from ryusen_protocol.canonical import jcs
from ryusen_protocol.codec import encode
from ryusen_protocol.frames import HISTORY_DELTA, ExecutionContract, HeldAttempt, Register, Registered, RegistrationRejected, SessionError
from ryusen_protocol.ids import RequestId, RunId, SessionId
from ryusen_protocol.limits import ID_BYTES_MAX, Limits
from ryusen_protocol.submission import identifier_problem, utf8_size
from ryusen_server.core.commands.never_began import NeverBegan
from ryusen_server.core.selection import UNVERSIONED_POSITION
from ryusen_server.core.state import UNRESOLVED
from ryusen_server.engine.config import EngineConfig
from ryusen_server.engine.control import Control
from ryusen_server.engine.fleet import Fleet, Instance
from ryusen_server.engine.leases import Leases
from ryusen_server.engine.runs import LiveRun, Runs
from ryusen_server.ports.time import Clock, Entropy
from ryusen_server.ports.worker import WorkerChannel

CAPACITY_MAX = 100_000
WORDS_MAX = 64
"""Features, and capabilities, of one worker: each is kept and shown."""
CAPABILITIES = frozenset((HISTORY_DELTA,))
"""Optional parts of the protocol that this server takes part in."""

REPLACED_CLOSE_CODE = 4001


class Opened(msgspec.Struct, frozen=True):
    """A session that has just opened, the answer its worker gets, and what its word proves, to be applied after the answer."""

    instance: Instance
    answer: Registered
    never_began: list[tuple[RunId, NeverBegan]]


class Registrar:
    """Opens sessions. `disconnect` ends the session that a newer one replaces; `load` gives a run, and none for one that cannot be read."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        disconnect: Callable[[SessionId, str], None],
        fleet: Fleet,
        leases: Leases,
        control: Control,
        runs: Runs,
        load: Callable[[RunId], Awaitable[LiveRun | None]],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._config = config
        self._disconnect = disconnect
        self._fleet = fleet
        self._leases = leases
        self._control = control
        self._runs = runs
        self._load = load
        self._clock = clock
        self._entropy = entropy

    async def register(self, frame: Register, channel: WorkerChannel) -> Opened | RegistrationRejected:
        """See the table above. Raises `StorageUnavailable`."""
        refused = _shape_problem(frame) or self._older(frame)
        if refused is not None:
            return refused
        position = await self._release_position(frame)
        if isinstance(position, RegistrationRejected):
            return position
        wanted = await self._wanted(frame)
        refused = self._older(frame)
        if refused is not None:
            return refused
        known = self._fleet.instance(frame.scope, frame.instance_id)
        if known is not None and known.channel is not None:
            self._replace(known)
        now_ms = self._clock.now_ms()
        instance = self._fleet.open(frame, SessionId(self._entropy.token("ses")), channel, position, now_ms)
        answer = Registered(
            protocol_version=PROTOCOL_VERSION,
            session_id=instance.session_id,
            capabilities=[name for name in frame.capabilities if name in CAPABILITIES],
            limits=Limits(),
            heartbeat_ms=self._config.heartbeat_ms,
            lease_ms=self._config.lease_ms,
            wanted=wanted,
        )
        return Opened(instance, answer, self._reconcile(instance, frame, now_ms))

    def _older(self, frame: Register) -> RegistrationRejected | None:
        known = self._fleet.instance(frame.scope, frame.instance_id)
        if known is not None and known.endpoint is not None:
            return _rejected("invalid", "The instance_id is the address of an endpoint of this server. Make one up at random.")
        if known is not None and known.channel is not None and frame.connection < known.frame.connection:
            return _rejected("replaced", "A newer connection of this worker is open. Only one connection of a process may register.")
        return None

    async def _release_position(self, frame: Register) -> int | RegistrationRejected:
        if frame.release_id is None:
            return UNVERSIONED_POSITION
        contract = contract_text(frame.contract)
        release = await self._control.release(frame.scope, frame.release_id, contract)
        if release.contract != contract:
            return _rejected(
                "release_conflict",
                f"The release {frame.release_id} is known with another execution contract. Give a changed worker a release id of its own.",
            )
        return release.position

    def _replace(self, known: Instance) -> None:
        channel = known.channel
        self._disconnect(known.session_id, "replaced by a newer connection")
        if channel is not None:
            channel.send(
                encode(SessionError(PROTOCOL_VERSION, "replaced", "Another connection registered under this worker's instance id."))
            )
            channel.close(REPLACED_CLOSE_CODE, "replaced")

    def _reconcile(self, instance: Instance, frame: Register, now_ms: int) -> list[tuple[RunId, NeverBegan]]:
        never_began: list[tuple[RunId, NeverBegan]] = []
        held = {attempt.request_id for attempt in frame.held}
        for lease in self._leases.of(instance):
            if lease.request_id in held:
                self._leases.renew(lease.request_id, instance, now_ms)
                live = self._runs.get(lease.run_id)
                if live is not None and lease.request_id not in instance.flights:
                    self._fleet.take_off(instance, lease.request_id, lease.run_id, live.run.function, discovery=False)
            elif lease.session_id == frame.previous_session:
                self._fleet.land(lease.request_id)
                never_began.append((lease.run_id, NeverBegan(lease.request_id, "the worker came back without it")))
        return never_began

    async def _wanted(self, frame: Register) -> list[RequestId]:
        return [attempt.request_id for attempt in frame.held if await self._is_wanted(attempt, frame)]

    async def _is_wanted(self, held: HeldAttempt, frame: Register) -> bool:
        if held.attempt is None:
            return False
        live = await self._load(held.run_id)
        if live is None or (live.run.workspace, live.run.application) != (frame.scope.workspace, frame.scope.application):
            return False
        known = live.run.requests.get(held.request_id)
        attempt = None if known is None else live.run.attempts[known]
        return attempt is not None and attempt.request_id == held.request_id and attempt.state in UNRESOLVED


def contract_text(contract: ExecutionContract) -> str:
    """A contract in canonical form, features in order, to be compared."""
    return jcs(
        {"features": sorted(contract.features), "protocol_version": contract.protocol_version, "value_codec": contract.value_codec}
    ).decode()


def _shape_problem(frame: Register) -> RegistrationRejected | None:
    contract = frame.contract
    if contract.protocol_version != PROTOCOL_VERSION or contract.value_codec != VALUE_CODEC_VERSION:
        return _rejected(
            "unsupported_contract",
            f"The worker speaks protocol {contract.protocol_version} with value codec {contract.value_codec}; "
            f"this server speaks {PROTOCOL_VERSION} and {VALUE_CODEC_VERSION}. Use an SDK of the same major version.",
        )
    if len(set(frame.functions)) != len(frame.functions) or not all(frame.functions):
        return _rejected("invalid", "The functions of a worker are distinct and not empty.")
    if not 1 <= frame.capacity <= CAPACITY_MAX:
        return _rejected("invalid", f"The capacity is {frame.capacity}; it must be 1 to {CAPACITY_MAX}.")
    if frame.connection < 1:
        return _rejected("invalid", "A worker counts its connections from 1.")
    return _names_problem(frame) or _words_problem(frame)


def _names_problem(frame: Register) -> RegistrationRejected | None:
    """What a worker names is looked up, shown and recorded: nothing that no route could name gets that far."""
    for what, name in _names(frame):
        refused = identifier_problem(what, name, "$")
        if refused is not None:
            return _rejected("invalid", refused.detail)
    return None


def _names(frame: Register) -> Iterator[tuple[str, str]]:
    yield "workspace", frame.scope.workspace
    yield "application", frame.scope.application
    yield "instance_id", frame.instance_id
    if frame.release_id is not None:
        yield "release id", frame.release_id
    for function in frame.functions:
        yield "function id", function


def _words_problem(frame: Register) -> RegistrationRejected | None:
    if max(len(frame.contract.features), len(frame.capabilities)) > WORDS_MAX:
        return _rejected("invalid", f"A worker has at most {WORDS_MAX} features and {WORDS_MAX} capabilities.")
    facts = (frame.manifest_digest, frame.sdk.name, frame.sdk.version, frame.runtime.name, frame.runtime.version)
    for word in (*facts, *frame.contract.features, *frame.capabilities):
        size = utf8_size(word)
        if size is None or size > ID_BYTES_MAX:
            return _rejected(
                "invalid", f"A worker's digest, names and versions, features and capabilities have at most {ID_BYTES_MAX} bytes each."
            )
    return None


def _rejected(code: str, message: str) -> RegistrationRejected:
    return RegistrationRejected(PROTOCOL_VERSION, code, message)
