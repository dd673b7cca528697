// A run on one time axis. `layout` is pure: a run, its history and a moment to rows of segments, in milliseconds since the run began, and the
// scale they are drawn at. What is over is laid out once.

import { isOver } from "./model.js";
import { oneLine } from "./values.js";
import { attemptWord, errorText, plural, printable, runWord, skipReason, span, stepWord, targetWord } from "./say.js";

const KINDS = { timer: "sleeps", event_wait: "waits for", child: "invokes", emission: "emits" };
const GAP_SHARE = 0.25;
const FOLDED_SHARE = 0.03;
const ZOOM_MAX = 64;
const PASSES_APART = 150;

// `view`: { fold, zoom, pan }. Zoom is how many times the whole is wider than what is seen of it, pan the share that lies before it.
export function layout(run, history, nowMs, { fold = false, zoom = 1, pan = 0 } = {}) {
  const begin = run.created_at_ms;
  const end = Math.max(run.ended_at_ms ?? nowMs, begin + 1);
  const length = end - begin;
  const rows = [];
  const { count, segments } = discoveryPasses(history, begin, end, length / zoom);
  if (count) rows.push({ key: "passes", label: "discovery", note: plural(count, "pass", "passes"), word: null, segments, kind: "passes", isOver: true });
  for (const step of run.steps) rows.push(once(step, () => stepRow(step, begin, end, nowMs)));
  for (const target of run.unwind.targets) rows.push(once(target, () => targetRow(target, begin, end, nowMs)));
  const gaps = fold ? gapsOf(rows, length) : [];
  const { at, total } = scale(gaps, length);
  return { begin, length, rows, gaps, at, total, from: pan * total, shown: total / zoom };
}

const made = new WeakMap();

function once(one, make) {
  if (!isOver(one)) return make();
  if (!made.has(one)) made.set(one, { ...make(), isOver: true });
  return made.get(one);
}

export function zoomed({ zoom, pan }, by) {
  const next = by === 0 ? 1 : Math.max(1, Math.min(ZOOM_MAX, by > 0 ? zoom * 2 : zoom / 2));
  return { zoom: next, pan: within(pan + 0.5 / zoom - 0.5 / next, next) };
}

export const panned = ({ zoom, pan }, by) => ({ zoom, pan: within(pan + (by * 0.25) / zoom, zoom) });

const within = (pan, zoom) => Math.max(0, Math.min(1 - 1 / zoom, pan));

// The body is run again and again; a pass is repeatable and counts as nothing, and is shown as such.
const known = new WeakMap();

function discoveryPasses(history, begin, end, shownMs) {
  if (!known.has(history)) known.set(history, { ...readPasses(history, begin), merged: new Map() });
  const { passes, open, merged } = known.get(history);
  // Halved or doubled only, so that most of what is drawn stays while a run goes on.
  const apart = passes.length > PASSES_APART ? 2 ** Math.floor(Math.log2(shownMs / PASSES_APART)) : 0;
  if (!merged.has(apart)) merged.set(apart, (apart ? together(passes, apart) : passes).map(passSegment));
  const over = merged.get(apart);
  if (!open) return { count: passes.length, segments: over };
  const now = { from: open.from, to: end - begin, tone: "accent", kind: "pass", title: `discovery pass ${open.first}, out now` };
  return { count: passes.length + 1, segments: [...over, now] };
}

const passSegment = ({ from, to, first, last }) =>
  ({ from, to, tone: "muted", kind: "pass", title: first === last ? `discovery pass ${first}` : `discovery passes ${first} to ${last}` });

// What could not be told apart is one.
function together(passes, apart) {
  const merged = [];
  for (const pass of passes) {
    const before = merged.at(-1);
    if (before && Math.floor(before.from / apart) === Math.floor(pass.from / apart)) Object.assign(before, { to: pass.to, last: pass.last });
    else merged.push({ ...pass });
  }
  return merged;
}

const PASS_ENDS = new Set(["step_declared", "outcome_decided", "run_blocked", "stop_requested", "run_ended"]);

function readPasses(history, begin) {
  const passes = [];
  let open = null;
  for (const { at_ms: at, records } of history) {
    for (const record of records) {
      if (open && PASS_ENDS.has(record.kind)) {
        passes.push({ ...open, to: at - begin });
        open = null;
      }
      if (record.kind === "discovery_queued") open = { from: at - begin, first: record.pass, last: record.pass };
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

// From milliseconds to places on the axis. Folded, a gap takes little of it.
function scale(gaps, length) {
  if (!gaps.length) return { at: (ms) => Math.max(0, Math.min(ms, length)), total: length };
  const kept = length - gaps.reduce((sum, [from, to]) => sum + to - from, 0);
  const total = Math.max(kept, 1) / (1 - FOLDED_SHARE * gaps.length);
  const at = (ms) => {
    let place = 0;
    let last = 0;
    for (const [from, to] of gaps) {
      if (ms <= from) break;
      place += from - last + FOLDED_SHARE * total * Math.min(1, (ms - from) / (to - from));
      last = Math.min(to, ms);
    }
    return place + Math.max(0, Math.min(ms, length) - last);
  };
  return { at, total };
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

const STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
  1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000];

// Instants for the axis between two, with their words: round steps, about `most` of them.
export function ticks(from, to, most = 6) {
  const rough = (to - from) / most;
  const step = STEPS_MS.find((each) => each >= rough) ?? Math.ceil(rough / 86_400_000) * 86_400_000;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push({ at, text: tickText(at, step) });
  return found;
}

// As fine as the steps are, so that no two say the same.
function tickText(at, step) {
  if (at < 1000) return at === 0 ? "0" : `${at}ms`;
  const seconds = (at % 60_000) / 1000;
  const whole = [[86_400_000, "d", Infinity], [3_600_000, "h", 24], [60_000, "m", 60]].map(([size, unit, most]) => [Math.floor(at / size) % most, unit])
    .filter(([count]) => count).map(([count, unit]) => `${count}${unit}`).join("");
  return seconds || !whole ? `${whole}${seconds.toFixed(step >= 1000 ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3)}s` : whole;
}

export function describe(run, rows) {
  return `Timeline of ${printable(run.function)}: ${runWord(run).text}, ${plural(rows.filter((row) => row.kind !== "passes").length, "row")}. ` +
    "The table below says the same.";
}
