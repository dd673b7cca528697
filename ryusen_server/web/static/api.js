// Requests to the HTTP API: one token for the tab, answers as documents, and three ways to fail that are never mixed up.

const TOKEN = "ryusen-token";
const PATIENCE_MS = 30_000;

// The server refused and said why. `token` is the one it was asked with.
export class Refused extends Error {
  constructor(status, document, held) {
    super(document?.detail ?? document?.refusal?.message ?? `HTTP ${status}`);
    this.status = status;
    this.token = held;
    this.document = document;
    this.code = document?.code ?? document?.refusal?.code ?? `http_${status}`;
  }
}

// No answer, or none that can be read: whatever was asked for may have been done.
export class Lost extends Error {}

export const token = () => sessionStorage.getItem(TOKEN);
export const keepToken = (text) => sessionStorage.setItem(TOKEN, text);
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

export function headers(more = {}) {
  const held = token();
  return held === null ? { ...more } : { ...more, authorization: `Bearer ${held}` };
}

// The document a path answers. `body` is JSON text, sent as it is.
export async function ask(path, { method = "GET", body } = {}) {
  const content = body === undefined ? {} : { "content-type": "application/json" };
  const held = token();
  let status;
  let text;
  try {
    const answer = await fetch(path, {
      method, body, headers: headers({ accept: "application/json", ...content }), cache: "no-store", redirect: "error",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    status = answer.status;
    text = await answer.text();
  } catch (error) {
    throw new Lost(error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : "the connection was lost");
  }
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Lost(`the answer (HTTP ${status}) cannot be read`);
  }
  if (status >= 200 && status < 300) return document;
  throw new Refused(status, document, held);
}

// A key that no other intent has.
export function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `web-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export const segment = (id) => encodeURIComponent(id).replace(/^\.+$/, (dots) => dots.replaceAll(".", "%2E"));

export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
