"""Requests that a program makes up from the OpenAPI document of a running server, and whether each answer is one the document promises.

`python -m tests.api.fuzz_api --requests 20000` runs a campaign and prints its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import jsonschema_rs
import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck
from schemathesis import GenerationMode

from tests.gateway.worker_peer import WorkerPeer, publication, worker_peer

ROOT = Path(__file__).resolve().parents[2]
W = "/v1/workspaces/default"
WAYS = 4
"""How often each made-up request is sent: as it is, with ids that exist, and twice with something broken."""
GENERATED_MAX = 150
"""Cases asked of one strategy at a time: beyond that, a strategy repeats itself."""
SERVE = """
import sys
from pathlib import Path
from ryusen_server.bootstrap import ServerSettings, serve
serve(ServerSettings(db=Path(sys.argv[1]), port=0, lease_ms=300, log_level="CRITICAL"), on_ready=lambda ready: print(ready.url, flush=True))
"""


@contextmanager
def server_process(folder: Path) -> Iterator[tuple[str, int]]:
    """A server of its own: base URL and process id."""
    command = [sys.executable, "-c", SERVE, str(folder / "ryusen.db")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the server did not start"
            yield url, process.pid
            assert process.poll() is None, "the server is gone"
        finally:
            process.terminate()


def resident_bytes(pid: int) -> int | None:
    """Memory a process holds, where the system tells."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
    return None if found is None else int(found[1]) * 1024


async def live_a_little(url: str) -> None:
    """Runs that ended each way, one that is Unknown, and one that is blocked."""
    with requests.Session() as session:
        answer = session.post(f"{url}{W}/applications/shop/manifests", json=publication())
        assert answer.status_code == 201, answer.text
        for number in range(4):
            submitted = session.post(f"{url}{W}/events", json={"name": "order/placed", "data": number, "metadata": {"n": str(number)}})
            assert submitted.status_code == 201
        async with worker_peer(url) as peer:
            await _play(peer)
        deadline = time.monotonic() + 20
        while not session.get(f"{url}{W}/attempts", params={"state": "unknown"}).json()["items"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def _play(peer: WorkerPeer) -> None:
    """Each run its own ending; over when all are where they stay."""
    endings = iter(("completed", "uncaught", "blocked", "unknown"))
    ending: dict[str, str] = {}
    left = {"completed", "uncaught", "blocked", "unknown"}
    while left:
        frame = await peer.receive()
        if frame["type"] != "invoke":
            continue
        invocation = frame["invocation"]
        run_id = invocation["run"]["run_id"]
        own = ending[run_id] if run_id in ending else ending.setdefault(run_id, next(endings))
        match invocation["target"]["mode"]:
            case "compensation":
                await peer.answer(frame, {"type": "target_not_found", "reason": "no_compensator"})
                left.discard(own)
            case "forward" if own == "unknown":
                left.discard(own)
            case "forward":
                await peer.answer(frame, {"type": "succeeded", "result": {"type": "i64", "value": "7"}})
            case _ if not invocation["history"]["steps"]:
                await peer.declare(frame, "charge")
            case _:
                await peer.answer(frame, _ENDS[own])
                left -= {own} - {"uncaught"}


_PLACE = {"file": "shop.py", "line": 3, "name": "charge"}
_ENDS: dict[str, dict[str, Any]] = {
    "completed": {"type": "completed", "result": {"type": "null"}},
    "uncaught": {"type": "uncaught", "failure": {"category": "Broken", "message": "it broke", "retryable": False, "stack": "here"}},
    "blocked": {"type": "definition_blocked", "reason": "duplicate_step_id", "step_id": "charge", "first": _PLACE, "duplicate": _PLACE},
}


class Campaign:
    """Requests against one server, and what their answers came to."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.sent = 0
        self.statuses: Counter[int] = Counter()
        self._random = random.Random(seed)
        self._session = requests.Session()
        self._session.trust_env = False
        self.document: dict[str, Any] = self._session.get(f"{url}/v1/openapi.json").json()
        self._validators: dict[int, jsonschema_rs.Validator] = {}
        self._real = self._ids()
        self._schema = schemathesis.openapi.from_dict(self.document)

    def operations(self) -> list[Any]:
        """Everything the document offers."""
        return [found.ok() for found in self._schema.get_all_operations()]

    def run(self, requests_wanted: int, *, share: int = 0, of: int = 1) -> None:
        """Send that many, over every `of`-th operation from `share` on."""
        chosen = self.operations()[share::of]
        modes = [(one, mode) for one in chosen for mode in GenerationMode]
        while self.sent < requests_wanted:
            before = self.sent
            each = min(GENERATED_MAX, max(1, (requests_wanted - self.sent) // (len(modes) * WAYS) + 1))
            for operation, mode in modes:
                self._some(operation, mode, each)
            assert self.sent > before

    def _some(self, operation: Any, mode: GenerationMode, many: int) -> None:
        if not operation.body and not operation.query and mode is GenerationMode.NEGATIVE:
            return  # no path of identifiers alone is wrong, since any text is one; looking for a wrong one takes seconds

        @hypothesis.seed(self._random.getrandbits(32))
        @hypothesis.settings(max_examples=many, database=None, deadline=None, derandomize=False, suppress_health_check=list(HealthCheck))
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            self._send(operation, case, mode)

        send()

    def _send(self, operation: Any, case: Any, mode: GenerationMode) -> None:
        made = requests.Request(**_sendable(case.as_transport_kwargs(base_url=self.url)))
        plain = self._session.prepare_request(made)
        plain.url = _patient(str(plain.url))
        status = self._ask(operation, plain)
        if mode is GenerationMode.POSITIVE and status == 400:
            assert _may_disagree(operation, plain.url), f"refused as invalid: {plain.method} {plain.url} {plain.body!r}"
        there = plain.copy()
        there.url = self._url_of_what_exists(operation, str(plain.url))
        self._ask(operation, there)
        broken = there.copy()
        broken.url = (
            f"{there.url}{'&' if '?' in str(there.url) else '?'}{self._random.choice(('limit=0', 'x', 'limit=1&limit=1', '%', 'q=%ff'))}"
        )
        self._ask(operation, broken)
        garbled = there.copy()
        if isinstance(there.body, bytes) and there.body:
            garbled.body = self._garbled(there.body)
            garbled.headers["content-length"] = str(len(garbled.body))
        else:
            garbled.url = str(there.url).replace("/default/", f"/{quote(self._random.choice(('ü', '😀', 'x' * 300, '..')), safe='')}/")
        self._ask(operation, garbled)

    def _garbled(self, body: bytes) -> bytes:
        at = self._random.randrange(len(body))
        match self._random.randrange(5):
            case 0:
                return body[:at]
            case 1:
                return body[:at] + bytes([self._random.randrange(256)]) + body[at + 1 :]
            case 2:
                return body[:at] + body[at // 2 :]
            case 3:
                return b"[" * 5_000 + body
            case _:
                return body.replace(b"0", b"1e999", 1).replace(b'"', b'"\\ud800', 1)

    def _ask(self, operation: Any, request: requests.PreparedRequest) -> int:
        self.sent += 1
        with self._session.send(request, stream=True, timeout=30) as answer:
            self.statuses[answer.status_code] += 1
            self._conforms(operation, request, answer)
            return answer.status_code

    def _conforms(self, operation: Any, request: requests.PreparedRequest, answer: requests.Response) -> None:
        told = f"{request.method} {request.url} {(request.body or b'')[:500]!r} was answered {answer.status_code}"
        assert answer.status_code < 500, told
        promised = self.document["paths"][operation.path][operation.method.lower()]["responses"]
        assert str(answer.status_code) in promised, f"{told}, which the document does not promise"
        content_type = answer.headers.get("content-type", "").partition(";")[0]
        content = promised[str(answer.status_code)]["content"]
        assert content_type in content, f"{told} as {content_type}"
        if content_type.endswith("json"):
            validator = self._validator(content[content_type]["schema"])
            document = answer.json()
            if not validator.is_valid(document):
                raise AssertionError(f"{told} with {document}: {next(validator.iter_errors(document))}")

    def _validator(self, schema: dict[str, Any]) -> jsonschema_rs.Validator:
        key = id(schema)
        if key not in self._validators:
            self._validators[key] = jsonschema_rs.validator_for({**schema, "components": self.document["components"]})
        return self._validators[key]

    def _ids(self) -> dict[str, list[str]]:
        def listed(what: str, member: str) -> list[str]:
            return [item[member] for item in self._session.get(f"{self.url}{W}/{what}").json()["items"]]

        manifest = listed("applications", "manifest_generation")
        return {
            "workspace": ["default"],
            "application": ["shop"],
            "manifest_generation": manifest,
            "routing_generation": listed("routing", "routing_generation"),
            "event_id": listed("events", "event_id"),
            "run_id": listed("runs", "run_id"),
            "attempt_id": listed("attempts", "attempt_id"),
        }

    def _url_of_what_exists(self, operation: Any, url: str) -> str:
        path = re.sub(r"\{(\w+)\}", lambda found: quote(self._random.choice(self._real[found[1]]), safe=""), operation.path)
        _, mark, query = url.partition("?")
        return f"{self.url}{path}{mark}{query}"

    def every_reading_route(self) -> None:
        """Each GET once with what exists, so that the richest documents are held against their schemas too."""
        for operation in self.operations():
            if operation.method.upper() != "GET":
                continue
            names = re.findall(r"\{(\w+)\}", operation.path)
            for number in range(max((len(self._real[name]) for name in names), default=1)):
                path = operation.path
                for name in names:
                    path = path.replace(f"{{{name}}}", quote(self._real[name][number % len(self._real[name])], safe=""))
                request = self._session.prepare_request(requests.Request("GET", f"{self.url}{path}"))
                if operation.path != "/v1/connect":
                    assert self._ask(operation, request) == 200, request.url


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    taken = {name: value for name, value in arguments.items() if name in {"method", "url", "headers", "params", "data", "json", "cookies"}}
    if "json" in taken:  # as the server reads it: requests would refuse what the document may hold
        taken["data"] = msgspec.json.encode(_whole(taken.pop("json")))
        taken["headers"] = {**dict(taken.get("headers") or {}), "content-type": "application/json"}
    return taken


def _whole(document: Any) -> Any:
    """A schema takes 1.0 for an integer; the server wants integers written as such, and says so."""
    match document:
        case float() if document.is_integer() and abs(document) < 2**63:
            return int(document)
        case list():
            return [_whole(item) for item in document]
        case dict():
            return {name: _whole(item) for name, item in document.items()}
        case _:
            return document


def _patient(url: str) -> str:
    return re.sub(r"wait_ms=\d+(?=&|$)", "wait_ms=2", url)


def _may_disagree(operation: Any, url: str | None) -> bool:
    """What no schema can say: a cursor is one this server made, a trigger's function stands beside it, the body repeats the path."""
    return "cursor=" in str(url) or operation.path.endswith(("/manifests", "/resolve", "/v1/connect"))


def main() -> None:
    """Run a campaign from the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, server_process(Path(folder)) as (url, pid):
        asyncio.run(live_a_little(url))
        campaign = Campaign(url, chosen.seed)
        campaign.every_reading_route()
        campaign.run(min(500, chosen.requests))  # what is made when first asked for is there now
        before, began = resident_bytes(pid), time.monotonic()
        campaign.run(chosen.requests)
        after = resident_bytes(pid)
        print(f"{campaign.sent} requests in {time.monotonic() - began:.0f} s: {dict(sorted(campaign.statuses.items()))}")
        if before is not None and after is not None:
            print(f"memory {before / 2**20:.1f} -> {after / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
