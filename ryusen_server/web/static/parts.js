// The pieces every page is made of: words with their glyphs, ids, instants, facts, tables, and the five looks of what is asked for.

import { h } from "./dom.js";
import { age, clock, fromNow, instant, printable, raisedAt } from "./say.js";
import { oneLine, payloadText, valueText } from "./values.js";

export const word = (said, title) => said.text === "" ? null : h(`span.word.tone-${said.tone}`, { title },
  said.glyph === said.text ? null : h("span.glyph", { "aria-hidden": "true" }, said.glyph), h("span.words", null, said.text));

export const id = (text) => h("code.id", { title: printable(text) }, printable(text));

export const link = (context, path, text, props) => h("a", { href: context.href(path), ...props }, text);
export const runLink = (context, runId, props) => link(context, `/runs/${encodeURIComponent(runId)}`, h("code.id", null, printable(runId)), props);
export const eventLink = (context, eventId) => link(context, `/events/${encodeURIComponent(eventId)}`, h("code.id", null, printable(eventId)));

export const when = (atMs, { short = false } = {}) => atMs === null || atMs === undefined ? null :
  h("time", { datetime: isoOf(atMs), title: instant(atMs) }, short ? clock(atMs) : instant(atMs));
export const ago = (atMs, nowMs) => h("time", { datetime: isoOf(atMs), title: instant(atMs) }, age(nowMs - atMs));
export const until = (atMs, nowMs) => [when(atMs), " ", h("span.quiet", null, `(${fromNow(atMs, nowMs)})`)];

function isoOf(atMs) {
  const at = new Date(atMs);
  return Number.isNaN(at.getTime()) ? null : at.toISOString();
}

export const facts = (...pairs) => h("dl.facts", null, pairs.filter(Boolean).map(([name, ...said]) =>
  h("div", { key: name }, h("dt", null, name), h("dd", null, ...said))));

const serials = new WeakMap();
let latest = 0;

// A number for an object that only that object has: what is made of facts that never change is remembered under it.
export function serial(object) {
  if (!serials.has(object)) serials.set(object, (latest += 1));
  return serials.get(object);
}

// A table whose rows keep their elements. Columns: [title, class?]. Rows: { key, cells, props? }; cells may be a function, for rows with a memo.
// Where all rows have one, none is looked at unless one has changed.
export function table(label, columns, rows, { className = "" } = {}) {
  const memo = rows.every(({ props }) => props?.memo !== undefined) ? rows.map(({ key, props }) => `${key} ${props.memo}`).join("\n") : undefined;
  return h("div.scroller", { role: "region", "aria-label": label, tabindex: 0 },
    h("table", { class: className, "aria-label": label },
      h("thead", null, h("tr", null, columns.map(([title, kind]) => h("th", { key: title || "actions", scope: "col", class: kind },
        title || h("span.unseen", null, "Actions"))))),
      h("tbody", { memo }, () => rows.map(({ key, cells, props }) => h("tr", { key, ...props }, () => (typeof cells === "function" ? cells() : cells).map((cell, index) =>
        h("td", { key: String(index), class: columns[index][1], "data-label": columns[index][0] }, cell)))))));
}

// Payloads and values may be large: each is written out once, and not with every drawing.
export const payload = (base64) => h("figure.block", { memo: base64 }, () => {
  const { text, bytes, isText } = payloadText(base64);
  return written(isText ? pretty(text) : text, isText ? `${bytes} bytes` : `${bytes} bytes that are no text, in base64`);
});

export const value = (tagged) => h("figure.block", { memo: serial(tagged) }, () => written(valueText(tagged), null));

export const block = (text, note) => h("figure.block", null, written(text, note));

const SHOWN_CHARACTERS = 20_000;

function written(text, note) {
  const shown = printable(text.length > SHOWN_CHARACTERS ? text.slice(0, SHOWN_CHARACTERS) : text, true);
  const cut = text.length > SHOWN_CHARACTERS ? `the first ${SHOWN_CHARACTERS} of ${text.length} characters; the API has all of them` : null;
  return [h("pre", { tabindex: 0 }, shown), note || cut ? h("figcaption", null, [note, cut].filter(Boolean).join("; ")) : null];
}

// Indentation alone is changed, and only where it is certain that nothing else would be.
function pretty(text) {
  let depth = 0;
  let out = "";
  if (text.length > SHOWN_CHARACTERS) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "{" || token === "[") out += token + "\n" + " ".repeat((depth += 2));
    else if (token === "}" || token === "]") out = out.replace(/\n *$/, "") + (/[{[]$/.test(out.trimEnd()) ? "" : "\n" + " ".repeat(depth - 2)) + token, depth -= 2;
    else if (token === ",") out += ",\n" + " ".repeat(depth);
    else out += token === ":" ? ": " : token;
  }
  return out;
}

export function failure(error, title = "Failure") {
  const raised = error.stack ? raisedAt(error.stack) : null;
  const details = Object.entries(error.details ?? {});
  return h("section.failure", null, h("h3", null, title),
    h("p", null, h("code.category", null, printable(error.category)), " ", h("span.message", null, printable(error.message, true)), " ",
      h("span.quiet", null, error.retryable ? "(may be retried)" : "(not to be retried)")),
    raised && !error.message.includes(raised) ? h("p", null, "at ", h("code", null, printable(raised))) : null,
    details.length ? facts(...details.map(([name, tagged]) => [printable(name), oneLine(tagged)])) : null,
    error.stack ? h("details", null, h("summary", null, "Stack"), block(error.stack, null)) : null,
    error.cause ? failure(error.cause, "Caused by") : null);
}

// One of five looks; `show` draws what there is.
export function looked(look, resource, { empty, show, what, titled }) {
  switch (look) {
    case "loading": return h("p.loading", { role: "status" }, `Loading ${what}…`);
    case "error": return [titled ? h("h1", null, titled) : null, notice("bad", `The ${what} cannot be shown`, resource.error.message, codeOf(resource.error))];
    case "empty": return h("div.empty", null, empty);
    case "stale": return [resource.error ? notice("warn", "This may be old", `${resource.error.message}; trying again.`, codeOf(resource.error)) : null,
      resource.document.items?.length === 0 ? h("div.empty", null, empty) : show(resource.document)];
    default: return show(resource.document);
  }
}

const codeOf = (error) => error.code ?? null;

export const notice = (tone, title, text, code, ...more) => h(`div.notice.tone-${tone}`, null,
  h("p", null, h("strong", null, title), text ? [": ", text] : null, code ? [" ", h("code", null, `[${code}]`)] : null), ...more);

export const button = (text, onclick, props) => h("button", { type: "button", onclick, ...props }, text);

export const copy = (context, text, what) => button("Copy", () => context.copy(text, what), { class: "small", "aria-label": `Copy ${what}` });
