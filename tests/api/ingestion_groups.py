"""Groups of submissions that belong together: the same again, at once, with a change, with one key in two workspaces, without a key.

What each group must come to follows from the group alone. `python -m tests.api.ingestion_groups --groups 10000` prints what deviated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from ryusen_server.bootstrap import running_server
from tests.gateway.worker_peer import publication

WORKSPACES = ("default", "other")
AT_ONCE = 32
KINDS = ("again", "at once", "changed", "raced", "elsewhere", "keyless", "spelled")


class Answer(NamedTuple):
    """What one submission got."""

    status: int
    event_id: str | None
    word: str


class Groups:
    """Submits groups to one server and keeps whatever deviates from what the group must come to."""

    def __init__(self, url: str, session: aiohttp.ClientSession, seed: int) -> None:
        self._url = url
        self._session = session
        self._random = random.Random(seed)
        self.deviations: list[str] = []
        self.created: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    async def run(self, count: int) -> None:
        """Submit that many groups, some at a time."""
        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:
                await self._group(number)

        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))

    async def _group(self, number: int) -> None:
        kind = self._random.choice(KINDS)
        self.kinds[kind] += 1
        body: dict[str, Any] = {
            "name": self._random.choice(("order/placed", "nobody/listens")),
            "data": {"n": number},
            "metadata": {"group": str(number)},
            "idempotency_key": f"key-{number}",
        }
        many = self._random.randint(2, 5)
        match kind:
            case "again":
                self._expect_one(kind, number, [await self._submit("default", body) for _ in range(many)])
            case "at once":
                self._expect_one(kind, number, await asyncio.gather(*(self._submit("default", body) for _ in range(many))))
            case "changed":
                first = await self._submit("default", body)
                changed = [await self._submit("default", self._changed(body)) for _ in range(many)]
                self._expect(kind, number, first.word == "created" and all(one.status == 409 and one.event_id is None for one in changed))
                self._expect(kind, number, (await self._submit("default", body)).event_id == first.event_id)
            case "raced":
                other = self._changed(body)
                answers = await asyncio.gather(*(self._submit("default", self._random.choice((body, other))) for _ in range(many)))
                self._expect_race(number, answers)
            case "elsewhere":
                here, there = await asyncio.gather(*(self._submit(workspace, body) for workspace in WORKSPACES))
                self._expect(kind, number, here.word == there.word == "created" and here.event_id != there.event_id)
            case "keyless":
                keyless = {name: member for name, member in body.items() if name != "idempotency_key"}
                answers = await asyncio.gather(*(self._submit("default", keyless) for _ in range(many)))
                self._expect(kind, number, all(one.word == "created" for one in answers))
                self._expect(kind, number, len({one.event_id for one in answers}) == many)
            case _:
                first = await self._submit("default", body)
                spaced = await self._send("default", json.dumps(dict(reversed(body.items())), indent=1).encode())
                same_data = await self._send("default", json.dumps(dict(reversed(body.items())), separators=(", ", ": ")).encode())
                self._expect(
                    kind,
                    number,
                    spaced.status == 409,
                )
                self._expect(kind, number, (same_data.word, same_data.event_id) == ("replayed", first.event_id))

    def _changed(self, body: dict[str, Any]) -> dict[str, Any]:
        change = self._random.choice(({"name": "order/other"}, {"data": {"n": -1}}, {"metadata": {}}, {"data": {"n": "1"}}))
        return {**body, **change}

    async def _submit(self, workspace: str, body: dict[str, Any]) -> Answer:
        return await self._send(workspace, json.dumps(body).encode())

    async def _send(self, workspace: str, content: bytes) -> Answer:
        url = f"{self._url}/v1/workspaces/{workspace}/events"
        async with self._session.post(url, data=content, headers={"content-type": "application/json"}) as answer:
            document = await answer.json(content_type=None)
            word = document.get("status") if answer.status in {200, 201} else document.get("code")
            if word == "created":
                self.created[workspace] += 1
            return Answer(answer.status, document.get("event_id"), str(word))

    def _expect_one(self, kind: str, number: int, answers: list[Answer]) -> None:
        words = Counter(one.word for one in answers)
        self._expect(kind, number, words == Counter(created=1, replayed=len(answers) - 1))
        self._expect(kind, number, len({one.event_id for one in answers}) == 1)
        self._expect(kind, number, {one.status for one in answers if one.word == "created"} == {201})

    def _expect_race(self, number: int, answers: list[Answer]) -> None:
        words = Counter(one.word for one in answers)
        self._expect("raced", number, words["created"] == 1)
        self._expect("raced", number, set(words) <= {"created", "replayed", "idempotency_key_reused"})
        self._expect("raced", number, len({one.event_id for one in answers if one.event_id is not None}) == 1)

    def _expect(self, kind: str, number: int, holds: bool) -> None:
        if not holds:
            self.deviations.append(f"group {number}, {kind}")

    async def audit(self) -> None:
        """That there are exactly the events that were created, each fully expanded, with the runs of its bindings and no others."""
        for workspace in WORKSPACES:
            events = await self._pages(f"/v1/workspaces/{workspace}/events")
            runs = await self._pages(f"/v1/workspaces/{workspace}/runs")
            self._expect(f"{workspace}: events", -1, len(events) == self.created[workspace])
            self._expect(f"{workspace}: matched", -1, sum(event["matched"] for event in events) == len(runs))
            self._expect(f"{workspace}: runs", -1, len({(run["event_id"], run["trigger_id"]) for run in runs}) == len(runs))

    async def _pages(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        query: dict[str, str] = {"limit": "500"}
        while True:
            async with self._session.get(f"{self._url}{path}", params=query) as answer:
                page = await answer.json()
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            query["cursor"] = page["next_cursor"]


async def campaign(folder: Path, groups: int, seed: int) -> Groups:
    """A server of its own, its groups, and the audit of what they left."""
    async with running_server(folder) as server, aiohttp.ClientSession() as session:
        for workspace in WORKSPACES:
            url = f"{server.url}/v1/workspaces/{workspace}/applications/shop/manifests"
            async with session.post(url, json=publication()) as answer:
                assert answer.status == 201
        submitted = Groups(server.url, session, seed)
        await submitted.run(groups)
        await server.store.flush()
        await submitted.audit()
        return submitted


def main() -> None:
    """Run a campaign from the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--groups", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(campaign(Path(folder), chosen.groups, chosen.seed))
    print(f"{sum(done.kinds.values())} groups {dict(done.kinds)}, {sum(done.created.values())} events in {time.monotonic() - began:.0f} s")
    print(f"{len(done.deviations)} deviations {done.deviations[:20]}")


if __name__ == "__main__":
    main()
