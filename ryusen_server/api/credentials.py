"""Who a token stands for, and what that allows: capabilities in workspaces and in applications, nothing else.

Pure. A token is known by the SHA-256 of its text alone; the text itself is compared, never kept, shown or logged. Refuses to know how
credentials get here, and what anything that is asked for is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from ryusen_protocol.ids import Application, Workspace
from ryusen_protocol.problems import Problem, problem
from ryusen_protocol.scope import Scope
from ryusen_server.api.route import ApplicationCapability, Capability, Route, WorkspaceCapability

_SCHEME: Final = "bearer"
TOKEN_CHARACTERS_MAX: Final = 4_096
UNAUTHORIZED: Final = problem(
    "unauthorized", "This server asks for a token, and the request carries none that it knows. Send it as Authorization: Bearer TOKEN."
)
FORBIDDEN: Final = problem("forbidden", "The token does not allow this. Whoever keeps the credentials file can say what it allows.")
"""Says nothing of what was asked for, so that what exists and what does not are answered alike."""


class Principal(msgspec.Struct, frozen=True):
    """Whom one token stands for. `sha256` is the lower-case hex digest of the token; `name` is how its commands are signed."""

    sha256: str
    name: str | None
    workspaces: Mapping[Workspace, frozenset[WorkspaceCapability]]
    applications: Mapping[Scope, frozenset[ApplicationCapability]]

    def may_in_workspace(self, capability: Capability, workspace: Workspace) -> bool:
        """Whether a capability of workspaces is held in this one."""
        return capability in self.workspaces.get(workspace, frozenset())

    def may_in_application(self, capability: Capability, scope: Scope) -> bool:
        """Whether a capability of applications is held in this one."""
        return capability in self.applications.get(scope, frozenset())

    @property
    def readable(self) -> frozenset[Workspace]:
        """The workspaces that may be read."""
        return frozenset(workspace for workspace, held in self.workspaces.items() if "read" in held)

    @property
    def executes(self) -> bool:
        """Whether it may run work of any application."""
        return any("execute" in held for held in self.applications.values())


class Credentials(msgspec.Struct, frozen=True):
    """Everybody a server knows."""

    principals: tuple[Principal, ...]

    def principal(self, authorization: Sequence[str]) -> Principal | None:
        """Whom the values of the `Authorization` header stand for, if there is exactly one and its token is known."""
        if len(authorization) != 1:
            return None
        scheme, _, token = authorization[0].strip().partition(" ")
        token = token.strip()
        if scheme.lower() != _SCHEME or not token or len(token) > TOKEN_CHARACTERS_MAX:
            return None
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found: Principal | None = None
        for known in self.principals:  # to the end, whoever it is: the time tells nothing
            if hmac.compare_digest(known.sha256, given):
                found = known
        return found

    def known(self, sha256: str) -> Principal | None:
        """The principal with that digest, as it is now."""
        return next((principal for principal in self.principals if principal.sha256 == sha256), None)

    @property
    def workspaces(self) -> frozenset[Workspace]:
        """Every workspace there is."""
        named = {workspace for principal in self.principals for workspace in principal.workspaces}
        return frozenset(named | {scope.workspace for principal in self.principals for scope in principal.applications})

    def executes(self, scope: Scope) -> bool:
        """Whether any token may run work of the application."""
        return any(principal.may_in_application("execute", scope) for principal in self.principals)


class Access:
    """The credentials of a running server, which may be replaced while it runs. Without any, everybody may do everything."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.credentials = credentials
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call it after every replacement: what is open may have to close."""
        self._listeners.append(listener)

    def replace(self, credentials: Credentials) -> None:
        """These count from now on."""
        self.credentials = credentials
        for listener in self._listeners:
            listener()

    def identify(self, authorization: Sequence[str]) -> Principal | Problem | None:
        """Who asks; none on a server without credentials."""
        if self.credentials is None:
            return None
        return self.credentials.principal(authorization) or UNAUTHORIZED

    def still(self, principal: Principal | None) -> Principal | None:
        """The principal with what it may do by now; one without anything when its token is gone."""
        if principal is None or self.credentials is None:
            return principal
        return self.credentials.known(principal.sha256) or msgspec.structs.replace(principal, workspaces={}, applications={})

    def may_in_workspace(self, principal: Principal | None, capability: Capability, workspace: Workspace) -> bool:
        """Whether something that goes on, such as a stream, may still, by what counts now."""
        if self.credentials is None:
            return True
        current = self.still(principal)
        return current is not None and current.may_in_workspace(capability, workspace)

    def may_execute(self, principal: Principal | None, scope: Scope) -> bool:
        """Whether work of the application may be run, by what counts now."""
        if self.credentials is None:
            return True
        current = self.still(principal)
        return current is not None and current.may_in_application("execute", scope)

    def reads_everything(self, principal: Principal | None) -> bool:
        """Whether figures over all workspaces may be shown."""
        return self.credentials is None or (principal is not None and self.credentials.workspaces <= principal.readable)


def refusal(
    principal: Principal, route: Route, segments: Mapping[str, str], parameters: Sequence[str], workspaces: frozenset[Workspace]
) -> Problem | None:
    """Why the principal may not call the route, if it may not.

    `segments` are decoded; `parameters` are the names of those given; `workspaces` are all that the server has.

    Looks at nothing but the request and the principal: an identifier selects a scope and grants none.
    """
    if route.everywhere and not workspaces <= principal.readable:
        return FORBIDDEN
    needed: set[Capability] = {capability for name, capability in route.parameter_needs.items() if name in parameters}
    if _allows(principal, route, segments) and all(_in_workspace(principal, capability, segments) for capability in needed):
        return None
    return FORBIDDEN


def _allows(principal: Principal, route: Route, segments: Mapping[str, str]) -> bool:
    match route.capability:
        case None:
            return True
        case "deploy" | "execute":
            return _in_application(principal, route.capability, segments)
        case _:
            if _in_workspace(principal, route.capability, segments):
                return True
            return any(_in_application(principal, capability, segments) for capability in route.also_by)


def _in_workspace(principal: Principal, capability: Capability, segments: Mapping[str, str]) -> bool:
    workspace = segments.get("workspace")
    if workspace is None:  # the server itself: whoever may read some workspace may read how it is set up
        return any(capability in held for held in principal.workspaces.values())
    return principal.may_in_workspace(capability, Workspace(workspace))


def _in_application(principal: Principal, capability: Capability, segments: Mapping[str, str]) -> bool:
    workspace, application = segments.get("workspace"), segments.get("application")
    if workspace is None or application is None:
        return False
    return principal.may_in_application(capability, Scope(Workspace(workspace), Application(application)))
