"""The transactions of a run as sentences, in the order they were committed.

A record says only what it changed, so the teller remembers which attempt belongs to which step. A record of a kind that this
version does not know is shown as it is.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from ryusen_cli.output import Cell, Output
from ryusen_protocol import words
from ryusen_protocol.api import HistoryEntryDocument
from ryusen_protocol.plain import clock_text, value_text

_ENDED: Final = "run_ended"
_PHASES: Final = {"forward": "", "compensation": "undo "}


class Teller:
    """Tells one run's history, entry by entry."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._attempts: dict[str, str] = {}
        self.ended = False

    def tell(self, entry: HistoryEntryDocument) -> list[list[Cell]]:
        """The lines of one transaction. Entries come in order, from the first one on."""
        lines: list[list[Cell]] = []
        for raw in entry.records:
            cells = self._record(cast("dict[str, Any]", msgspec.json.decode(raw)))
            lines.append([f"{clock_text(entry.at_ms)}  {entry.position:>6}  ", *cells])
        return lines

    def _record(self, record: dict[str, Any]) -> list[Cell]:
        kind = str(record.get("kind"))
        if kind == _ENDED:
            self.ended = True
        known = getattr(self, f"_{kind}", None)
        if known is None or kind.startswith("_"):
            return [f"{kind} ", _rest(record)]
        return cast("list[Cell]", known(record))

    def _run_created(self, record: dict[str, Any]) -> list[Cell]:
        origin = f" for event {record['event_id']}" if record.get("event_id") else ""
        return [f"run created: {record.get('function')} of {record.get('application')}{origin}"]

    def _discovery_queued(self, record: dict[str, Any]) -> list[Cell]:
        return [f"pass {record.get('pass')} over the function queued"]

    def _step_declared(self, record: dict[str, Any]) -> list[Cell]:
        declaration = cast("dict[str, Any]", record.get("declaration", {}))
        undo = ", can be undone" if declaration.get("has_compensation") else ""
        return [f"step {declaration.get('step_id')} declared ({declaration.get('kind')}{undo})"]

    def _attempt_queued(self, record: dict[str, Any]) -> list[Cell]:
        phase = _PHASES.get(str(record.get("phase")), "")
        name = f"{phase}{record.get('step_id')}, attempt {record.get('attempt')}"
        generation = record.get("attempt_generation")
        if isinstance(generation, int) and generation > 1:
            name += f" (generation {generation})"
        self._attempts[str(record.get("attempt_id"))] = name
        return [f"{name} queued"]

    def _attempt_authorized(self, record: dict[str, Any]) -> list[Cell]:
        worker = cast("dict[str, Any]", record.get("worker", {}))
        return [f"{self._attempt(record)} may begin at {worker.get('instance_id')}"]

    def _attempt_settled(self, record: dict[str, Any]) -> list[Cell]:
        word = words.ATTEMPTS.get(cast("Any", record.get("state")))
        shown: Cell = str(record.get("state")) if word is None else self._output.word(word)
        return [f"{self._attempt(record)}: ", shown, _failure(record)]

    def _attempt_unknown(self, record: dict[str, Any]) -> list[Cell]:
        return [f"{self._attempt(record)}: ", self._output.word(words.ATTEMPTS["unknown"]), f" ({record.get('reason')})"]

    def _attempt_requeued(self, record: dict[str, Any]) -> list[Cell]:
        return [f"{self._attempt(record)} queued again: it never began ({record.get('reason')})"]

    def _step_completed(self, record: dict[str, Any]) -> list[Cell]:
        if record.get("failure"):
            return [f"step {record.get('step_id')} ", self._output.word(words.STEPS["failed"]), _failure(record)]
        return [f"step {record.get('step_id')} ", self._output.word(words.STEPS["succeeded"]), _result(record)]

    def _step_obsolete(self, record: dict[str, Any]) -> list[Cell]:
        hidden = f" (hidden by {record['hidden_by']})" if record.get("hidden_by") else ""
        return [f"step {record.get('step_id')} is no longer in the code{hidden}"]

    def _step_stopped(self, record: dict[str, Any]) -> list[Cell]:
        return [f"step {record.get('step_id')} stopped before it began"]

    def _submission_stale(self, record: dict[str, Any]) -> list[Cell]:
        return [f"{self._attempt(record)}: a late answer ({record.get('answer')}) changed nothing: {record.get('reason')}"]

    def _run_blocked(self, record: dict[str, Any]) -> list[Cell]:
        return [f"blocked at step {record.get('step_id')}: {record.get('message')}"]

    def _stop_requested(self, record: dict[str, Any]) -> list[Cell]:
        return [f"stop requested ({record.get('reason')}) by {record.get('by')}"]

    def _outcome_decided(self, record: dict[str, Any]) -> list[Cell]:
        word = words.OUTCOMES.get(cast("Any", record.get("outcome")))
        shown: Cell = str(record.get("outcome")) if word is None else self._output.word(word)
        return ["outcome: ", shown, _failure(record), _result(record)]

    def _compensation_started(self, record: dict[str, Any]) -> list[Cell]:
        targets = cast("list[dict[str, Any]]", record.get("targets", []))
        return ["to be undone, in this order: " + (", ".join(str(target.get("step_id")) for target in targets) or "nothing")]

    def _target_settled(self, record: dict[str, Any]) -> list[Cell]:
        word = words.TARGETS.get(cast("Any", record.get("state")))
        shown: Cell = str(record.get("state")) if word is None else self._output.word(word)
        reason = words.skip_reason(record.get("reason"), record.get("hidden_by"))
        why = f" ({reason})" if record.get("state") == "skipped" else ""
        return [f"undo {record.get('step_id')}: ", shown, why, _failure(record)]

    def _run_ended(self, record: dict[str, Any]) -> list[Cell]:
        try:
            word = words.recovery_word(cast("Any", record.get("recovery")), None)
        except AssertionError:
            return [f"run ended; recovery {record.get('recovery')}"]
        return ["run ended; recovery ", self._output.word(word)]

    def _attempt(self, record: dict[str, Any]) -> str:
        attempt_id = str(record.get("attempt_id"))
        return self._attempts.get(attempt_id, f"attempt {attempt_id}")


def _failure(record: dict[str, Any]) -> str:
    failure = cast("dict[str, Any] | None", record.get("failure"))
    return f"  {failure.get('category')}: {failure.get('message')}" if failure else ""


def _result(record: dict[str, Any]) -> str:
    return f"  {value_text(msgspec.Raw(msgspec.json.encode(record['result'])))}" if "result" in record else ""


def _rest(record: dict[str, Any]) -> str:
    return msgspec.json.encode({name: value for name, value in record.items() if name != "kind"}).decode()
