// Portable values to and from text. Pure. Numbers keep every digit: they are never read as JavaScript numbers unless they are doubles.

import { printable } from "./say.js";

// The text of a tagged value as indented JSON; what JSON has no form for is written as an object that names its kind.
export function valueText(tagged, indent = 2) {
  return written(tagged, indent, "");
}

function written(tagged, indent, margin) {
  if (tagged === null || typeof tagged !== "object" || typeof tagged.type !== "string") return JSON.stringify(tagged) ?? "null";
  const { type, value } = tagged;
  switch (type) {
    case "null": return "null";
    case "bool": return String(value);
    case "i64": case "u64": return String(value);
    case "f64": return typeof value === "string" ? "-0.0" : Number.isInteger(value) && Math.abs(value) < 1e21 ? `${value}.0` : String(value);
    case "string": return JSON.stringify(value);
    case "array": return wrapped("[", "]", value.map((item) => written(item, indent, margin + " ".repeat(indent))), indent, margin);
    case "object": return wrapped("{", "}", Object.entries(value).map(([name, item]) =>
      `${JSON.stringify(name)}: ${written(item, indent, margin + " ".repeat(indent))}`), indent, margin);
    case "bytes": return `{"bytes": ${JSON.stringify(value)}}`;
    case "instant": return `{"instant": "${value.seconds}.${String(value.nanos).padStart(9, "0")}"}`;
    case "duration": return `{"duration": {"seconds": "${value.seconds}", "nanos": ${value.nanos}}}`;
    case "blob_ref": return `{"blob": ${JSON.stringify(value.uri)}, "size": "${value.size}"}`;
    default: return JSON.stringify(tagged);
  }
}

function wrapped(open, close, items, indent, margin) {
  if (!items.length) return open + close;
  if (!indent) return `${open}${items.join(", ")}${close}`;
  const inner = margin + " ".repeat(indent);
  return `${open}\n${items.map((item) => inner + item).join(",\n")}\n${margin}${close}`;
}

export const oneLine = (tagged, most = 160) => {
  const text = printable(valueText(tagged, 0));
  return text.length > most ? `${text.slice(0, most)}…` : text;
};

export function bytesOf(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

export function base64Of(bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}

// A payload as the text it was sent as, or as base64 where it is no text.
export function payloadText(base64) {
  const bytes = bytesOf(base64);
  try {
    return { text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes), bytes: bytes.length, isText: true };
  } catch {
    return { text: base64, bytes: bytes.length, isText: false };
  }
}

export class NotJson extends Error {}

const I64_MIN = -(2n ** 63n);
const U64_MAX = 2n ** 64n - 1n;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const BLANK = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const DEPTH_MAX = 1000;

// JSON text to a tagged value. Throws NotJson with where and why: a repeated name and a number beyond 64 bits are no values.
export function parseTagged(text) {
  let at = 0;
  const match = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found;
  };
  const fail = (why) => {
    const before = text.slice(0, at).split("\n");
    throw new NotJson(`${why} at line ${before.length}, column ${before.at(-1).length + 1}`);
  };
  const blank = () => match(BLANK);
  const string = () => {
    const found = match(STRING);
    if (!found) fail("a string in double quotes is expected");
    const read = JSON.parse(found[0]);
    if (!read.isWellFormed()) fail("half of a surrogate pair");
    return read;
  };
  const number = () => {
    const found = match(NUMBER);
    if (!found) fail(at >= text.length ? "the text ends too early" : "no JSON value begins here");
    if (found[1] === undefined && found[2] === undefined) {
      const whole = BigInt(found[0]);
      if (whole < I64_MIN || whole > U64_MAX) fail("a whole number beyond 64 bits");
      if (found[0] === "-0") return { type: "i64", value: "0" };
      return { type: whole >= 2n ** 63n ? "u64" : "i64", value: found[0] };
    }
    const value = Number(found[0]);
    if (!Number.isFinite(value)) fail("a number that no double holds");
    return { type: "f64", value: Object.is(value, -0) ? "-0" : value };
  };
  const value = (depth) => {
    if (depth > DEPTH_MAX) fail("nested too deeply");
    blank();
    const next = text[at];
    if (next === "{") return object(depth);
    if (next === "[") return array(depth);
    if (next === '"') return { type: "string", value: string() };
    for (const [word, tagged] of [["null", { type: "null" }], ["true", { type: "bool", value: true }], ["false", { type: "bool", value: false }]]) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return tagged;
      }
    }
    return number();
  };
  const object = (depth) => {
    at += 1;
    const members = new Map();
    blank();
    if (text[at] === "}") { at += 1; return { type: "object", value: {} }; }
    for (;;) {
      blank();
      const name = string();
      if (members.has(name)) fail(`the name ${JSON.stringify(name)} is there twice`);
      blank();
      if (text[at] !== ":") fail("a colon is expected");
      at += 1;
      members.set(name, value(depth + 1));
      blank();
      if (text[at] === "}") { at += 1; break; }
      if (text[at] !== ",") fail("a comma or the end of the object is expected");
      at += 1;
    }
    const made = Object.create(null);
    for (const [name, member] of members) made[name] = member;
    return { type: "object", value: made };
  };
  const array = (depth) => {
    at += 1;
    const items = [];
    blank();
    if (text[at] === "]") { at += 1; return { type: "array", value: items }; }
    for (;;) {
      items.push(value(depth + 1));
      blank();
      if (text[at] === "]") { at += 1; break; }
      if (text[at] !== ",") fail("a comma or the end of the array is expected");
      at += 1;
    }
    return { type: "array", value: items };
  };
  const found = value(1);
  blank();
  if (at < text.length) fail("something follows the value");
  return found;
}
