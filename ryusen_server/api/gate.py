"""Who may talk to a server without a login: the check in front of every route, method and upgrade, and of what is no route at all.

A page in a browser can send requests to this machine, and a name it controls can be made to point here. So the `Host` must be one of
ours, an `Origin`, if there is one, too, and a mutation must carry a content type that no form and no simple request can send.
Pure: a request's head comes in, a problem or nothing goes out. No CORS header is ever sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ryusen_protocol.problems import Problem, invalid, problem

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
URL_BYTES_MAX: Final = 8 * 1024
HEADER_BYTES_MAX: Final = 16 * 1024
"""Request line and headers together."""
HEADERS_MAX: Final = 100
_SHOWN_CHARACTERS_MAX: Final = 100
_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_HTTP_PORT: Final = 80
_NO_FIELD: Final = re.compile(rb"\r\n(?![!#$%&'*+.^_`|~0-9A-Za-z-]+:)")


class GateRules(msgspec.Struct, frozen=True):
    """The values of `Host` and `Origin` that are ours, in lower case."""

    hosts: frozenset[str]
    origins: frozenset[str]


def gate_rules(port: int, allow_hosts: Iterable[str] = ()) -> GateRules:
    """The rules of a server on `port`. An allowed host is a name, or a name and the port that a proxy in front shows."""
    hosts: set[str] = set()
    for name in (*LOOPBACK_NAMES, *(host.lower() for host in allow_hosts)):
        if _names_port(name):
            hosts.add(name)
        else:
            hosts.add(f"{name}:{port}")
            if port == _HTTP_PORT:
                hosts.add(name)
    return GateRules(frozenset(hosts), frozenset(f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts))


def _names_port(name: str) -> bool:
    return name.rpartition("]")[2].count(":") == 1


def malformed(head: bytes) -> Problem | None:
    """Why the lines of a head cannot be trusted, if they cannot. `head` ends before the empty line.

    A name with a blank, a folded line, a lone CR or LF, a NUL: others on the way may read another host, or another length, out of them.
    """
    lines = head.count(b"\r\n")
    if lines == head.count(b"\n") == head.count(b"\r") and b"\x00" not in head and _NO_FIELD.search(head) is None:
        return None
    return invalid("The head of the request has a line that is no header. Send each as name: value, on a line of its own.")


def refusal(rules: GateRules, method: str, target: bytes, header: Callable[[str], Sequence[str]]) -> Problem | None:
    """Why the request is refused, if it is. `header` gives the values of a header by its name in lower case."""
    return (
        _refuse_host(rules, header("host"))
        or _refuse_origin(rules, header("origin"))
        or _refuse_target(method, target)
        or _refuse_body(method, header("content-encoding"), header("content-type"))
    )


def _refuse_host(rules: GateRules, hosts: Sequence[str]) -> Problem | None:
    if len(hosts) == 1 and hosts[0].strip().lower() in rules.hosts:
        return None
    if not hosts or not hosts[0].strip():
        found = "names no host"
    elif len(hosts) > 1:
        found = "names several hosts"
    else:
        found = f"is for {_shown(hosts[0])}"
    known = ", ".join(sorted(rules.hosts))
    return problem("host_not_allowed", f"The request {found}; this server answers for {known}. Allow another name with --allow-host.")


def _refuse_origin(rules: GateRules, origins: Sequence[str]) -> Problem | None:
    if not origins or (len(origins) == 1 and origins[0].strip().lower() in rules.origins):
        return None
    return problem("forbidden", f"The request comes from a page of {_shown(origins[0])}, which may not use this server.")


def _refuse_target(method: str, target: bytes) -> Problem | None:
    if len(target) > URL_BYTES_MAX:
        return problem("uri_too_long", f"The URL has {len(target)} bytes; at most {URL_BYTES_MAX} are read.", limit=URL_BYTES_MAX)
    if not target.startswith(b"/") and not (method == "OPTIONS" and target == b"*"):
        return invalid("The request target is no path. Send the path and query of the URL.")
    return None


def _refuse_body(method: str, encodings: Sequence[str], types: Sequence[str]) -> Problem | None:
    if encodings:
        return problem("unsupported_media_type", f"The body is encoded as {_shown(encodings[0])}. Send it as it is.")
    if method in _SAFE_METHODS or (len(types) == 1 and _is_json(types[0])):
        return None
    found = _shown(types[0]) if types else "nothing"
    return problem("unsupported_media_type", f"The Content-Type is {found}. A request that changes something is application/json.")


def _is_json(content_type: str) -> bool:
    media_type, _, parameters = content_type.lower().partition(";")
    return media_type.strip() == "application/json" and parameters.replace(" ", "").strip('"') in ("", "charset=utf-8", 'charset="utf-8')


def _shown(text: str) -> str:
    cut = text[:_SHOWN_CHARACTERS_MAX]
    return ascii(cut if len(cut) == len(text) else cut + "...")
