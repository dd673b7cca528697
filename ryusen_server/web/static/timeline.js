// A run on one time axis. `layout` is pure: a run, its history and a moment to rows of segments, in milliseconds since the run began.

import { oneLine } from "./values.js";
import { attemptWord, errorText, plural, printable, runWord, skipReason, span, stepWord, targetWord } from "./say.js";

const KINDS = { timer: "sleeps", event_wait: "waits for", child: "invokes", emission: "emits" };
const GAP_SHARE = 0.25;
const FOLDED_SHARE = 0.03;

export function layout(run, history, nowMs, { fold = false } = {}) {
  const begin = run.created_at_ms;
  const end = Math.max(run.ended_at_ms ?? nowMs, begin + 1);
  const rows = [];
  const passes = discoveryPasses(history, end, begin);
  if (passes.length) {
    rows.push({ key: "passes", label: "discovery", note: plural(passes.length, "pass", "passes"), word: null, segments: passes, kind: "passes" });
  }
  for (const step of run.steps) rows.push(stepRow(step, begin, end, nowMs));
  for (const target of run.unwind.targets) rows.push(targetRow(target, begin, end, nowMs));
  return { begin, length: end - begin, rows, scale: scale(rows, end - begin, fold) };
}

// The body is run again and again; a pass is repeatable and counts as nothing, and is shown as such.
const known = new WeakMap();

function discoveryPasses(history, end, begin) {
  if (!known.has(history)) known.set(history, readPasses(history, begin));
  const { passes, open } = known.get(history);
  return open ? [...passes, { from: open.from, to: end - begin, tone: "accent", kind: "pass", title: `discovery pass ${open.pass}, out now` }] : passes;
}

function readPasses(history, begin) {
  const passes = [];
  let open = null;
  for (const { at_ms: at, records } of history) {
    for (const record of records) {
      if (open && ["step_declared", "outcome_decided", "run_blocked", "stop_requested", "run_ended"].includes(record.kind)) {
        passes.push({ from: open.from, to: at - begin, tone: "muted", kind: "pass", title: `discovery pass ${open.pass}` });
        open = null;
      }
      if (record.kind === "discovery_queued") open = { from: at - begin, pass: record.pass };
    }
  }
  return { passes, open };
}

export function stepNote(step) {
  if (step.failure) return errorText(step.failure);
  if (step.result) return oneLine(step.result);
  const [kind, what] = [KINDS[step.kind], step.event_name ?? step.function ?? ""];
  return kind ? `${kind} ${printable(what)}`.trim() : "";
}

export function targetNote(target) {
  if (target.state === "skipped") return skipReason(target.reason, target.hidden_by);
  return target.error ? errorText(target.error) : "";
}

function stepRow(step, begin, end, nowMs) {
  const segments = step.kind === "run"
    ? attemptSegments(step.attempts, begin, end, nowMs)
    : [{ from: step.declared_at_ms - begin, to: (step.completed_at_ms ?? end) - begin, tone: stepWord(step).tone, kind: "wait",
         title: `${step.kind}: ${stepWord(step).text}` }];
  const tries = step.attempts.length > 1 ? plural(step.attempts.length, "attempt") : "";
  const pending = step.state === "pending" && step.attempts.length ? attemptWord(step.attempts.at(-1), nowMs) : stepWord(step);
  return { key: `step ${step.step_id}`, label: printable(step.step_id), word: pending, note: [tries, stepNote(step)].filter(Boolean).join(", "),
    segments, kind: step.kind };
}

function targetRow(target, begin, end, nowMs) {
  const word = target.state === "pending" && target.attempts.length ? attemptWord(target.attempts.at(-1), nowMs) : targetWord(target);
  return { key: `undo ${target.step_id}`, label: `↺ ${printable(target.step_id)}`, word, note: targetNote(target),
    segments: attemptSegments(target.attempts, begin, end, nowMs), kind: "unwind" };
}

function attemptSegments(attempts, begin, end, nowMs) {
  const segments = [];
  let before = null;
  for (const attempt of attempts) {
    if (attempt.authorized_at_ms === null) continue;
    const from = attempt.authorized_at_ms - begin;
    if (before !== null && from > before) segments.push({ from: before, to: from, tone: "muted", kind: "pause", title: `waited ${span(from - before)}` });
    const to = (attempt.settled_at_ms ?? end) - begin;
    const word = attemptWord(attempt, nowMs);
    const unsure = attempt.unknown_at_ms !== null && !attempt.out_of_contact ? Math.min(attempt.unknown_at_ms - begin, to) : to;
    if (unsure < to) segments.push({ from: unsure, to, tone: "alert", kind: "unknown", title: `Unknown for ${span(to - unsure)}` });
    segments.push({ from, to: unsure, tone: word.tone, kind: "attempt", title: `attempt ${attempt.attempt}: ${word.text}, ${span(to - from)}` });
    before = to;
  }
  return segments;
}

// From milliseconds to a share of the width. Folded, gaps take little of it.
function scale(rows, length, fold) {
  if (!fold) return { at: (ms) => ms / length, gaps: [] };
  const gaps = gapsOf(rows, length);
  const kept = length - gaps.reduce((sum, [from, to]) => sum + to - from, 0);
  const unit = Math.max(kept, 1) / (1 - FOLDED_SHARE * gaps.length);
  const at = (ms) => {
    let share = 0;
    let last = 0;
    for (const [from, to] of gaps) {
      if (ms <= from) break;
      share += (from - last) / unit + FOLDED_SHARE * Math.min(1, (ms - from) / (to - from));
      last = Math.min(to, ms);
    }
    return share + Math.max(0, ms - last) / unit;
  };
  return { at, gaps };
}

// Stretches in which nothing but waiting happens, long enough to be worth folding.
export function gapsOf(rows, length) {
  const busy = rows.flatMap((row) => row.segments.filter((one) => one.kind === "attempt" || one.kind === "pass"))
    .map((one) => [one.from, one.to]).sort((one, other) => one[0] - other[0]);
  const gaps = [];
  let until = 0;
  for (const [from, to] of [...busy, [length, length]]) {
    if (from - until > Math.max(1000, length * GAP_SHARE)) gaps.push([until, from]);
    until = Math.max(until, to);
  }
  return gaps;
}

// Instants for the axis: round steps, about `most` of them.
export function ticks(length, most = 6) {
  const rough = length / most;
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
    1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000];
  const step = steps.find((each) => each >= rough) ?? Math.ceil(rough / 86_400_000) * 86_400_000;
  const found = [];
  for (let at = 0; at <= length; at += step) found.push(at);
  return found;
}

export function describe(run, rows) {
  return `Timeline of ${printable(run.function)}: ${runWord(run).text}, ${plural(rows.filter((row) => row.kind !== "passes").length, "row")}. ` +
    "The table below says the same.";
}
