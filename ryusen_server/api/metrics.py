"""`GET /v1/metrics`: what the server counts, for Prometheus. No label holds anything a user brought in, so their number is bounded."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ryusen_protocol.problems import Problem
from ryusen_server.api.context import Context
from ryusen_server.api.exposition import CONTENT_TYPE, Family, Sample, by_label, exposition, histogram, single
from ryusen_server.api.requests import Requests
from ryusen_server.api.route import Answer, Call, Route, Text
from ryusen_server.engine.views import Present
from ryusen_server.ports.measures import StoreMeasures, Tallies
from ryusen_server.ports.retention import Space
from ryusen_server.ports.store import Counts

_OPEN_ATTEMPTS: Final = frozenset(("queued", "authorized", "unknown"))
_STATM: Final = Path("/proc/self/statm")
_FILES: Final = Path("/proc/self/fd")


async def _metrics(context: Context, call: Call) -> Answer | Problem:
    del call
    store = context.store
    counts, tallies, space = await store.counts(), await store.tallies(), await store.space()
    families = [
        *_server(context),
        *_work(counts, tallies, context.engine.present()),
        *_store(store.measures, store.queued_units, space),
        *_streams(context),
        *_http(context.requests),
        *_process(),
    ]
    return Answer(200, exposition(families), CONTENT_TYPE)


def _server(context: Context) -> Iterator[Family]:
    facts = context.facts
    yield Family("ryusen_info", "gauge", "The server's version.", [Sample(1, {"version": facts.product_version})])
    yield single("ryusen_start_time_seconds", "gauge", "When the server started, in seconds since the epoch.", facts.started_at_ms / 1000)
    up = float(context.health() == "ok")
    yield single("ryusen_healthy", "gauge", "1 while new work is taken: the server does not drain, and the database answers.", up)


def _work(counts: Counts, tallies: Tallies, present: Present) -> Iterator[Family]:
    runs = {**tallies.runs, "ended": counts.runs - counts.runs_live}
    yield by_label("ryusen_runs", "gauge", "Stored runs by status.", "status", runs)
    yield single("ryusen_runs_blocked", "gauge", "Runs whose code contradicts itself.", counts.runs_blocked)
    yield single("ryusen_runs_in_memory", "gauge", "Runs held in memory.", present.runs_in_memory)
    yield single("ryusen_queue_depth", "gauge", "Runs with work that waits for a worker.", present.runs_waiting)
    yield by_label("ryusen_attempts", "gauge", "Attempts that are not settled, by state.", "state", tallies.attempts)
    yield single("ryusen_attempts_unknown", "gauge", "Attempts that wait for an operator or a late answer.", counts.attempts_unknown)
    yield single("ryusen_events", "gauge", "Stored events.", counts.events)
    yield single("ryusen_events_expanding", "gauge", "Events whose runs are not all created yet.", tallies.events_expanding)
    workers = [Sample(count, {"transport": transport, "state": state}) for (transport, state), count in sorted(present.workers.items())]
    yield Family("ryusen_workers", "gauge", "Worker instances by transport and state.", workers)
    yield single("ryusen_worker_capacity", "gauge", "Invocations that available workers take at a time.", present.capacity)
    yield single("ryusen_worker_in_flight", "gauge", "Invocations that are out at workers.", present.in_flight)


def _store(measures: StoreMeasures, queued_units: int, space: Space) -> Iterator[Family]:
    seconds, units = measures.commit_seconds, measures.commit_units
    yield histogram("ryusen_commit_seconds", "How long commits took.", seconds.bounds, seconds.counts, seconds.sum)
    yield histogram("ryusen_commit_units", "How many transactions shared a commit.", units.bounds, units.counts, units.sum)
    yield single("ryusen_commit_failures_total", "counter", "Commits that were rolled back.", measures.commits_failed)
    yield single("ryusen_store_queue_units", "gauge", "Transactions that wait for a commit.", queued_units)
    yield single("ryusen_store_bytes", "gauge", "Size of the database without its log.", space.bytes)
    yield single("ryusen_store_free_pages", "gauge", "Pages of the database that hold nothing.", space.free_pages)
    settled = {state: count for state, count in measures.attempts.items() if state not in _OPEN_ATTEMPTS}
    yield by_label("ryusen_attempts_settled_total", "counter", "Attempts settled since the start, by state.", "state", settled)
    lost = measures.attempts["unknown"]
    yield single("ryusen_attempts_lost_total", "counter", "Attempts that became Unknown since the start.", lost)
    yield by_label("ryusen_runs_ended_total", "counter", "Runs that ended since the start, by outcome.", "outcome", measures.runs_ended)


def _streams(context: Context) -> Iterator[Family]:
    feed = context.engine.feed
    yield single("ryusen_stream_readers", "gauge", "Readers of the change stream.", feed.followers)
    resyncs = {str(reason): count for reason, count in feed.resyncs.items()}
    yield by_label("ryusen_stream_resyncs_total", "counter", "How often readers were told to begin anew.", "reason", resyncs)


def _http(requests: Requests) -> Iterator[Family]:
    answered = [
        Sample(count, {"method": method, "route": route, "status": str(status)})
        for (method, route, status), count in sorted(requests.answered.items())
    ]
    yield Family("ryusen_http_requests_total", "counter", "Answers by method, route and status.", answered)
    yield by_label("ryusen_http_requests_open", "gauge", "Requests that are being answered, by route.", "route", requests.open)
    by_route: Counter[str] = Counter()
    for (_, route, _), count in requests.answered.items():
        by_route[route] += count
    times = [
        sample
        for route, seconds in sorted(requests.seconds.items())
        for sample in (Sample(seconds, {"route": route}, "_sum"), Sample(by_route[route], {"route": route}, "_count"))
    ]
    yield Family("ryusen_http_request_seconds", "summary", "How long answers took, by route; long polls and streams wait.", times)


def _process() -> Iterator[Family]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield single("process_cpu_seconds_total", "counter", "Processor time of the server.", used.ru_utime + used.ru_stime)
    try:
        pages = int(_STATM.read_text().split()[1])
        files = len(os.listdir(_FILES))  # noqa: PTH208 — counted, not walked
    except OSError:  # a system without /proc
        return
    yield single("process_resident_memory_bytes", "gauge", "Resident memory of the server.", pages * resource.getpagesize())
    yield single("process_open_fds", "gauge", "Open files and sockets of the server.", files)


ROUTES: Final = (
    Route(
        "GET",
        "/v1/metrics",
        _metrics,
        "read",
        says="Tell what the server counts, in the Prometheus text format.",
        everywhere=True,
        answers={200: Text(CONTENT_TYPE)},
    ),
)
