// The transactions of a run as sentences. A record says only what it changed, so attempts are remembered as they come. A kind that this page
// does not know is shown as it is.

import { WORDS } from "./words.js";
import { errorText, printable, recoveryWord, skipReason } from "./say.js";
import { oneLine } from "./values.js";

export function sentences(entries) {
  const attempts = new Map();
  return entries.map((entry) => ({
    position: entry.position, at_ms: entry.at_ms,
    lines: entry.records.map((record) => sentence(record, attempts)),
  }));
}

const named = (record, attempts) => attempts.get(record.attempt_id) ?? `attempt ${printable(record.attempt_id)}`;
const ended = (record) => (record.failure ? `, ${errorText(record.failure)}` : record.result !== undefined ? `, ${oneLine(record.result, 200)}` : "");
const said = (family, fact) => (WORDS[family][fact] ? `${WORDS[family][fact].glyph} ${WORDS[family][fact].text}` : printable(String(fact)));

function sentence(record, attempts) {
  const id = (name) => printable(String(record[name] ?? ""));
  switch (record.kind) {
    case "run_created":
      return `run created: ${id("function")} of ${id("application")}${record.event_id ? ` for event ${id("event_id")}` : ""}`;
    case "discovery_queued": return `discovery pass ${record.pass} over the function queued`;
    case "step_declared": {
      const undo = record.declaration?.has_compensation ? ", can be undone" : "";
      return `step ${printable(record.declaration?.step_id ?? "")} declared (${printable(record.declaration?.kind ?? "")}${undo})`;
    }
    case "attempt_queued": {
      const undo = record.phase === "compensation" ? "undo " : "";
      const generation = record.attempt_generation > 1 ? ` (generation ${record.attempt_generation})` : "";
      attempts.set(record.attempt_id, `${undo}${id("step_id")}, attempt ${record.attempt}${generation}`);
      return `${named(record, attempts)} queued`;
    }
    case "attempt_authorized": return `${named(record, attempts)} may begin at ${printable(record.worker?.instance_id ?? "")}`;
    case "attempt_settled":
      return `${named(record, attempts)}: ${said("attempts", record.state)}${record.operator ? `, by ${id("operator")}` : ""}${ended(record)}`;
    case "attempt_unknown": return `${named(record, attempts)}: ${said("attempts", "unknown")} (${id("reason")})`;
    case "attempt_requeued": return `${named(record, attempts)} never began (${id("reason")}); queued again`;
    case "step_completed": return `step ${id("step_id")} completed${record.failure ? ` with a failure` : ""}${ended(record)}`;
    case "step_obsolete": return `step ${id("step_id")} is no longer in the code`;
    case "step_stopped": return `step ${id("step_id")} stopped before it began`;
    case "submission_stale": return `a late answer (${id("answer")}) of ${named(record, attempts)} counts for nothing: ${id("reason")}`;
    case "run_blocked": return `blocked at step ${id("step_id")} (${id("reason")})`;
    case "stop_requested": return `stop recorded: ${id("reason")}, by ${id("by")}`;
    case "outcome_decided": return `outcome: ${said("outcomes", record.outcome)}${ended(record)}`;
    case "compensation_started":
      return `to be undone, in this order: ${(record.targets ?? []).map((target) => printable(target.step_id)).join(", ") || "nothing"}`;
    case "target_settled": {
      const why = record.state === "skipped" ? ` (${skipReason(record.reason, record.hidden_by)})` : "";
      return `undo ${id("step_id")}: ${said("targets", record.state)}${why}${ended(record)}`;
    }
    case "run_ended": {
      const word = recoveryWord(record.recovery, null);
      return `run ended; recovery ${word.glyph === word.text ? word.text : `${word.glyph} ${word.text}`}`;
    }
    case "timer_armed": return `timer ${id("step_id")} armed`;
    case "wait_registered": return `wait ${id("step_id")} registered`;
    case "child_invoked": return `step ${id("step_id")} invoked run ${id("child_run_id")}`;
    default: {
      const { kind, ...rest } = record;
      return `${printable(kind)} ${printable(JSON.stringify(rest)).slice(0, 400)}`;
    }
  }
}
