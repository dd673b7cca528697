// How facts are said: words from the shared table, spans, instants and foreign text. Pure; knows no element and no request.

import { WORDS } from "./words.js";

export const NONE_YET = Object.freeze({ glyph: "", text: "", tone: "muted" });

export function runWord(run) {
  if (run.status === "stopping") return WORDS.stopping[run.stop?.reason ?? ""];
  if (run.status === "ended") return run.outcome ? WORDS.outcomes[run.outcome] : NONE_YET;
  return WORDS.statuses[run.status] ?? unknownWord(run.status);
}

export function recoveryWord(recovery, counts) {
  if (!recovery) return NONE_YET;
  const word = WORDS.recoveries[recovery] ?? unknownWord(recovery);
  return recovery === "not_required" ? word : { ...word, text: word.text + counted(counts) };
}

function counted(counts) {
  if (!counts) return "";
  const said = [[counts.succeeded, "undone"], [counts.skipped, "had nothing to undo"], [counts.failed, "failed"]]
    .filter(([number]) => number).map(([number, what]) => `${number} ${what}`);
  return said.length ? ` (${said.join(", ")})` : "";
}

export function attemptWord(attempt, nowMs) {
  if (attempt.settled_by === "operator") return WORDS.by_operator;
  if (attempt.state === "authorized" && attempt.out_of_contact) {
    const left = attempt.unknown_at_ms === null ? "" : `, Unknown in ${countdown(attempt.unknown_at_ms - nowMs)}`;
    return { ...WORDS.away, text: WORDS.away.text + left };
  }
  return WORDS.attempts[attempt.state] ?? unknownWord(attempt.state);
}

export const stepWord = (step) => WORDS.steps[step.state] ?? unknownWord(step.state);
export const targetWord = (target) => WORDS.targets[target.state] ?? unknownWord(target.state);
export const attentionWord = (attention) => (attention ? WORDS.attention[attention] ?? unknownWord(attention) : NONE_YET);
export const expansionWord = (expansion) => WORDS.expansions[expansion] ?? unknownWord(expansion);

export function skipReason(reason, hiddenBy) {
  if (reason === "hidden" && hiddenBy !== null && hiddenBy !== undefined) return `hidden behind new step ${printable(hiddenBy)}`;
  return reason === null || reason === undefined ? "no reason given" : WORDS.skip_reasons[reason] ?? printable(reason);
}

// A server newer than this page may say more than the page has words for.
const unknownWord = (fact) => ({ glyph: "", text: printable(String(fact)), tone: "muted" });

// Rounded up, so that nothing happens before its countdown is over.
export function countdown(leftMs) {
  const seconds = Math.max(0, Math.ceil(leftMs / 1000));
  return seconds < 120 ? `${seconds}s` : `${Math.ceil(seconds / 60)}m`;
}

// Two units at most, rounded to what is shown: 310ms, 1.8s, 2m5s, 2h30m, 1d4h.
export function span(ms) {
  ms = Math.trunc(ms);
  if (ms < 0) return "-" + span(-ms);
  if (ms < 1000) return `${ms}ms`;
  const tenths = rounded(ms, 100);
  if (tenths < 600) return tenths % 10 === 0 ? `${tenths / 10}s` : `${(tenths / 10).toFixed(1)}s`;
  const seconds = rounded(ms, 1000);
  if (seconds < 3600) return two(seconds, 60, "m", "s");
  const minutes = rounded(ms, 60_000);
  if (minutes < 1440) return two(minutes, 60, "h", "m");
  return two(rounded(ms, 3_600_000), 24, "d", "h");
}

const rounded = (ms, unit) => Math.floor((ms + Math.floor(unit / 2)) / unit);

function two(count, size, large, small) {
  const whole = Math.floor(count / size);
  const rest = count % size;
  return rest ? `${whole}${large}${rest}${small}` : `${whole}${large}`;
}

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

// In the reader's time zone, with its offset, as every line of output has it.
export function instant(atMs) {
  const at = new Date(atMs);
  if (Number.isNaN(at.getTime())) return `${atMs} ms`;
  const offset = -at.getTimezoneOffset();
  const zone = `${offset < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(offset) / 60))}:${pad(Math.abs(offset) % 60)}`;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(atMs)} ${zone}`;
}

export function clock(atMs) {
  const at = new Date(atMs);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

// How long ago, in the largest unit alone, so that a list does not flicker.
export function age(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  for (const [size, unit] of [[86_400, "d"], [3_600, "h"], [60, "m"]]) if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  return `${seconds}s`;
}

// A span that goes on, in whole seconds; one that runs out is rounded up.
export const soFar = (ms) => span(Math.floor(Math.max(0, ms) / 1000) * 1000);
export const fromNow = (atMs, nowMs) => (atMs > nowMs ? `in ${span(Math.ceil((atMs - nowMs) / 1000) * 1000)}` : `${soFar(nowMs - atMs)} ago`);

const UNPRINTABLE =
  "\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\u{e0000}-\\u{e007f}";
const IN_LINE = new RegExp(`[${UNPRINTABLE}]`, "gu");
const IN_BLOCK = new RegExp(`(?![\\n\\t])[${UNPRINTABLE}]`, "gu");

// Control and reordering characters written as escapes, as in terminals and logs.
export function printable(text, multiline = false) {
  return String(text).replace(multiline ? IN_BLOCK : IN_LINE, (found) => {
    const code = found.codePointAt(0);
    const hex = code.toString(16);
    if (code <= 0xff) return `\\x${hex.padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  });
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

export function errorText(error) {
  return `${printable(error.category)}: ${printable(error.message)}`;
}

const FRAME = /^ {2}File "([^"\n]+)", line (\d+), in (.+)$/gm;
const INSTALLED = /^<|[/\\](?:site-packages|dist-packages|ryusen_sdk|lib[/\\]python3[^/\\]*)[/\\]/;

// `file:line in name` of the innermost frame that is no installed package's, of a stack as Python writes it; null where there is none.
export function raisedAt(stack) {
  const frames = [...stack.matchAll(FRAME)];
  const [, file, line, name] = frames.findLast((frame) => !INSTALLED.test(frame[1])) ?? frames.at(-1) ?? [];
  return file === undefined ? null : `${file}:${line} in ${name}`;
}

export function place(location) {
  return `${printable(location.file)}:${location.line}${location.name ? ` (${printable(location.name)})` : ""}`;
}
