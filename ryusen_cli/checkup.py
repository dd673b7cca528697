"""What `ryusen doctor` finds: pure judgements over what the server, the targets and the database tell. Each finding says what, why and what
to do. Asks nobody and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ryusen_protocol.durations import format_ms

if TYPE_CHECKING:
    from ryusen_cli.target_probe import Found
    from ryusen_protocol.api import ApplicationDocument, FunctionDocument, ReleaseDocument, ServerInfo, WorkerDocument

SLOW_ANSWER_MS: Final = 1_000
"""A server answers whether it lives in a millisecond or two; one that takes this long does something else on its loop."""

Check = Literal["server", "database", "target", "application", "workers", "releases", "loops"]


class Finding(msgspec.Struct, frozen=True):
    """One check. `status` is `ok`, `problem`, or `skipped` where something else kept it from being made."""

    check: Check
    status: Literal["ok", "problem", "skipped"]
    code: str
    what: str
    why: str | None = None
    fix: str | None = None


def ok(check: Check, what: str) -> Finding:
    """Nothing is wrong here."""
    return Finding(check, "ok", "ok", what)


def problem(check: Check, code: str, what: str, why: str, fix: str) -> Finding:
    """Something is."""
    return Finding(check, "problem", code, what, why, fix)


def skipped(check: Check, why: str) -> Finding:
    """Nobody can tell."""
    return Finding(check, "skipped", "skipped", f"{check} not checked", why)


def check_server(server: ServerInfo, url: str, program: str) -> list[Finding]:
    """A server that answers, and whether it is this program's."""
    if server.product_version == program:
        return [ok("server", f"{url} answers: Ryusen {server.product_version}, database {server.database.path}")]
    why = f"the server is {server.product_version}, this program {program}"
    return [problem("server", "other_version", f"{url} runs another version than this program", why, "restart it from this environment")]


def check_target(target: str, found: Found) -> list[Finding]:
    """Whether a target imports."""
    if found.problem is not None:
        return [problem("target", "target_does_not_import", f"{target} cannot be used", found.problem, "fix that, and run doctor again")]
    return [ok("target", f"{target} imports: application {found.application}, {_several(len(found.functions), 'function')}")]


def check_application(found: Found, active: ApplicationDocument | None, publish: str) -> list[Finding]:
    """Whether what a target declares is what is active."""
    if active is None:
        why = "its manifest was never published, so no event starts its functions"
        return [problem("application", "not_synced", f"application {found.application} is not known to the server", why, publish)]
    if active.digest != found.digest:
        why = f"the active manifest is {active.digest}, that of the code {found.digest}"
        what = f"application {found.application} is not synced: functions or triggers differ from what is active"
        return [problem("application", "not_synced", what, why, publish)]
    return [ok("application", f"application {found.application} is synced ({active.manifest_generation})")]


def check_functions(functions: Sequence[FunctionDocument], worker: str) -> list[Finding]:
    """Whether somebody can run every function."""
    findings = [
        problem(
            "workers",
            "no_worker",
            f"no worker can run {one.application}/{one.function}",
            "none that is connected and takes work has it, so its runs wait",
            worker,
        )
        for one in functions
        if not one.workers
    ]
    if findings or not functions:
        return findings
    return [ok("workers", f"every function has a worker ({_several(len(functions), 'function')})")]


def check_releases(workers: Sequence[WorkerDocument], releases: Sequence[ReleaseDocument], active: dict[str, str]) -> list[Finding]:
    """Whether a connected worker takes work with code that is not the newest, or that declares something else than what is active."""
    newest = {release.application: release.release_id for release in releases}
    findings: list[Finding] = []
    for one in workers:
        if not one.connected or one.draining or one.transport == "http":
            continue
        latest = newest.get(one.application)
        if one.release_id is not None and latest is not None and one.release_id != latest:
            what = f"worker {one.instance_id} of {one.application} runs the release {one.release_id}"
            why = f"{latest} came after it; it only gets work that the newer one has no room for"
            findings.append(problem("releases", "stale_release", what, why, "stop it, or start it again with the current code"))
        elif one.manifest_digest and one.application in active and one.manifest_digest != active[one.application]:
            what = f"worker {one.instance_id} of {one.application} has other functions or triggers than those that are active"
            why = f"it declares {one.manifest_digest}, and active is {active[one.application]}"
            findings.append(
                problem("releases", "stale_release", what, why, "start it again with the current code, or publish its manifest")
            )
    return findings or [ok("releases", "every worker that takes work runs the newest release")]


def check_loops(answered_in_ms: int, workers: Sequence[WorkerDocument], heartbeat_ms: int, now_ms: int) -> list[Finding]:
    """Whether the server's loop, or a worker, is held up."""
    findings: list[Finding] = []
    if answered_in_ms > SLOW_ANSWER_MS:
        what = f"the server took {format_ms(answered_in_ms)} to say that it lives"
        why = "its event loop is busy or blocked, or the machine is overloaded"
        findings.append(
            problem("loops", "server_loop_blocked", what, why, "see what else runs on the machine; its log and /v1/metrics tell")
        )
    for one in workers:
        if not one.connected or one.transport == "http":
            continue
        silent_ms = now_ms - one.last_contact_at_ms
        if silent_ms > 2 * heartbeat_ms:
            what = f"worker {one.instance_id} of {one.application} is connected and has been silent for {format_ms(silent_ms)}"
            why = "its process is stopped, or the machine is overloaded: heartbeats come from a thread that callbacks cannot hold up"
            findings.append(
                problem("loops", "worker_silent", what, why, "look at that process; if it hangs, end it: its steps become Unknown")
            )
        elif one.last_failure is not None and one.last_failure.startswith("loop_blocked"):
            what = f"worker {one.instance_id} of {one.application} cannot run its coroutines"
            fix = "call what blocks from a plain function, which runs in a thread, or with asyncio.to_thread"
            findings.append(problem("loops", "worker_loop_blocked", what, one.last_failure, fix))
    return findings or [ok("loops", f"no event loop is held up (the server answered in {format_ms(answered_in_ms)})")]


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
