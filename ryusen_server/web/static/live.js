// The change stream of one workspace, shared by every tab of the browser: one tab leads, asks the server, and tells the others. A browser opens
// only a few connections to one server, so a stream for each tab would leave none for anything else.
//
// Owns patience and the position. Knows no kind of change.

import { headers, token } from "./api.js";

const SILENCE_MS = 25_000;
const PAUSE_FIRST_MS = 150;
const PAUSE_MAX_MS = 2_000;

export class Live {
  // `tell(name, document)` gets change, resync, heartbeat, notice, and `stream` with how the stream stands.
  constructor(path, tell) {
    this.path = path;
    this.tell = tell;
    this.position = 0;
    this.leading = false;
    this.followed = false;
    this.state = "connecting";
    this.ended = false;
    this.channel = null;
    this.abort = new AbortController();
  }

  // Everything behind `position` is told from here on.
  async start(position) {
    this.position = position;
    if (!navigator.locks || !globalThis.BroadcastChannel || !crypto.subtle) {
      this.leading = true;
      return this.#follow();
    }
    const name = `ryusen ${this.path} ${await fingerprint(token() ?? "")}`;
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = ({ data }) => this.#hear(data);
    navigator.locks.request(name, { signal: this.abort.signal }, async () => {
      this.leading = true;
      // Whoever led before is gone, and others may have heard more or less of it.
      this.channel.postMessage({ kind: "at", position: this.position, asks: true });
      await this.#follow();
    }).catch(() => {});
    this.channel.postMessage({ kind: "hello" });
  }

  stop() {
    this.ended = true;
    this.abort.abort();
    this.channel?.close();
  }

  #hear(message) {
    if (this.ended) return;
    if (message.kind === "at" && message.asks) this.channel.postMessage({ kind: "hello" });
    if (message.kind === "hello" && this.leading) {
      this.followed = true;
      this.channel.postMessage({ kind: "at", position: this.position });
      this.channel.postMessage({ kind: "state", state: this.state, why: "" });
    } else if (message.kind === "at" && !this.leading && message.position > this.position) {
      this.position = message.position;
      this.tell("resync", { position: message.position });
    } else if (message.kind === "state" && !this.leading) {
      this.#stand(message.state, message.why);
    } else if (message.kind === "event" && !this.leading) {
      this.#take(message.name, message.document);
    }
  }

  #stand(state, why = "") {
    this.state = state;
    this.tell("stream", { state, why });
    if (this.leading && this.followed) this.channel.postMessage({ kind: "state", state, why });
  }

  // Each change once and in order, whoever it comes from.
  #take(name, document) {
    if (name === "change" && document.position <= this.position) return;
    if (name === "change" || name === "heartbeat") this.position = Math.max(this.position, document.position);
    if (name === "resync") this.position = document.position;
    this.tell(name, document);
    // A tab that joins is told the position, and asks again if it is behind: nothing has to be said to nobody.
    if (this.leading && this.followed) this.channel.postMessage({ kind: "event", name, document });
  }

  async #follow() {
    let pause = PAUSE_FIRST_MS;
    while (!this.ended) {
      let why = "the server closed the stream";
      try {
        await this.#read(() => {
          pause = PAUSE_FIRST_MS;
          this.#stand("live");
        });
      } catch (error) {
        why = error.message;
        if (error.status === 401 || error.status === 403) {
          this.#stand("refused", why);
          return;
        }
      }
      if (this.ended) return;
      this.#stand("reconnecting", why);
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, PAUSE_MAX_MS);
    }
  }

  async #read(begun) {
    const silence = new AbortController();
    let heardAt = performance.now();
    const timer = setInterval(() => { if (performance.now() - heardAt > SILENCE_MS) silence.abort(); }, SILENCE_MS / 5);
    try {
      const answer = await fetch(`${this.path}?after=${this.position}`, {
        headers: headers({ accept: "text/event-stream" }), cache: "no-store", signal: AbortSignal.any([silence.signal, this.abort.signal]),
      });
      if (!answer.ok) throw Object.assign(new Error(`the stream was refused (HTTP ${answer.status})`), { status: answer.status });
      begun();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heardAt = performance.now();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) this.#event(block);
      }
    } finally {
      clearInterval(timer);
    }
  }

  #event(block) {
    let name = "message";
    const data = [];
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") name = value;
      if (field === "data") data.push(value);
    }
    if (data.length && ["change", "resync", "heartbeat", "notice"].includes(name)) this.#take(name, JSON.parse(data.join("\n")));
  }
}

async function fingerprint(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
