// What changes something: sending an event, settling an Unknown attempt, stopping a run. One intent has one key. While its answer is out nothing
// else can be asked; a lost answer is said to be ambiguous, and the same request goes out again under the same key; a refusal stays, with
// its code; an acknowledgement stays until it is closed.

import { Lost, ask, freshKey, keepToken, segment } from "./api.js";
import { h } from "./dom.js";
import { owe, owedIn } from "./intents.js";
import { acknowledgement } from "./pages.js";
import { button, eventLink, facts, id, notice, runLink, until, when, word } from "./parts.js";
import * as say from "./say.js";
import { NotJson, base64Of, parseTagged } from "./values.js";

// Answers to whoever asks, not to what is asked for: they tell nothing of what became of an earlier request.
const turnsAway = ({ status }) => [401, 403, 408, 421, 429].includes(status) || status >= 500;

// One request that changes something, and how it stands: ready, sending, lost, refused, done.
class Mutation {
  constructor(context, path) {
    this.context = context;
    this.path = path;
    this.body = null;
    this.state = "ready";
    this.error = null;
    this.answer = null;
  }

  async send(body) {
    if (this.state === "sending" || this.state === "done") return;
    const inDoubt = this.state === "lost";
    this.body = body;
    this.state = "sending";
    this.context.drawDialogs();
    try {
      this.answer = await ask(this.path, { method: "POST", body });
      this.state = "done";
    } catch (error) {
      this.error = error;
      this.state = error instanceof Lost || (inDoubt && turnsAway(error)) ? "lost" : "refused";
      this.context.failed(error);
    }
    this.context.drawDialogs();
  }

  // The one whose answer never came.
  owes(body) {
    this.body = body;
    this.state = "lost";
    this.error = new Lost("an earlier answer never came");
  }
}

class Dialog {
  constructor(context, title) {
    this.context = context;
    this.title = title;
    this.key = `dialog ${freshKey()}`;
  }

  frame(...content) {
    return h("dialog", {
      key: this.key, "aria-labelledby": `${this.key} title`.replaceAll(" ", "-"), class: this.wide ? "wide" : null,
      ref: (node) => { node.showModal(); node.querySelector("[data-first]")?.focus(); }, onclose: () => this.context.closed(this), oncancel: (event) => { event.preventDefault(); this.close(); },
    }, h("form.dialog", { onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      h("h2", { id: `${this.key} title`.replaceAll(" ", "-") }, this.title), ...content));
  }

  submit() {}

  close() {
    this.context.closed(this);
  }

  // What is asked for next is another intent.
  anew() {
    this.mutation = new Mutation(this.context, this.mutation.path);
    this.intent = null;
    this.context.drawDialogs();
  }

  // What became of it stays open.
  forget() {
    owe(this.slot, null);
    this.anew();
  }

  forgetButton() {
    return this.mutation.state === "lost" ? button("Forget it", () => this.forget(), { key: "forget" }) : null;
  }
}

function lostNotice(mutation, what, safe) {
  return mutation.state !== "lost" ? null : h("div", { role: "alert" }, notice("warn", "The answer was lost", `${mutation.error.message}. ${what} may have been done or not. ${safe}`, null));
}

function refusedNotice(mutation) {
  return mutation.state !== "refused" ? null : h("div", { role: "alert" }, notice("bad", "Refused", mutation.error.message, mutation.error.code));
}

// JSON as it was typed, read once however often it is drawn: the value, or why it is none.
let latest = { text: null };

function readJson(text) {
  if (latest.text !== text) {
    try {
      latest = { text, value: parseTagged(text) };
    } catch (error) {
      if (!(error instanceof NotJson)) throw error;
      latest = { text, why: error.message };
    }
  }
  return latest;
}

// --- Resolve ---

const CHOICES = [
  { command: "supply_success", digit: "1", title: (undo) => (undo ? "It was undone" : "It happened: supply its result") },
  { command: "declare_failure", digit: "2", title: () => "It failed: declare the failure" },
  { command: "authorize_retry", digit: "3", title: () => "Run it again: authorize another attempt" },
];

export class Resolve extends Dialog {
  constructor(context, attempt) {
    super(context, `Resolve ${say.printable(attempt.step_id)}`);
    // Who is settled is fixed here; what may be done follows the server.
    this.attempt = attempt;
    this.latest = attempt;
    this.run = null;
    this.choice = null;
    this.result = attempt.phase === "compensation" ? "null" : "";
    this.category = "operator.declared";
    this.message = "";
    this.retryable = false;
    this.typed = "";
    this.mutation = new Mutation(context, `${context.root}/attempts/${segment(attempt.attempt_id)}/resolve`);
    this.intent = null;
    this.asking = false;
    this.stale = false;
    this.wide = true;
    this.slot = `${attempt.attempt_id}/${attempt.attempt_generation}`;
    const owed = owedIn(this.slot);
    if (owed) {
      this.intent = owed;
      Object.assign(this, owed.form);
      this.mutation.owes(owed.body);
    }
    this.refresh();
  }

  get over() {
    return this.latest.state !== "unknown" || this.latest.attempt_generation !== this.attempt.attempt_generation;
  }

  concerns(change) {
    return change.records.some((record) => record.run_id === this.attempt.run_id);
  }

  // One at a time, so that an older answer never comes behind a newer one.
  async refresh() {
    if (this.asking) {
      this.stale = true;
      return;
    }
    this.asking = true;
    do {
      this.stale = false;
      await this.learn();
    } while (this.stale);
    this.asking = false;
  }

  async learn() {
    try {
      const [latest, run] = await Promise.all([ask(`${this.context.root}/attempts/${segment(this.attempt.attempt_id)}`), ask(`${this.context.root}/runs/${segment(this.attempt.run_id)}`)]);
      this.latest = latest;
      this.run = run;
    } catch (error) {
      this.context.failed(error);
    }
    this.context.drawDialogs();
  }

  // The command as it would be sent, or why there is none yet.
  command() {
    const undo = this.attempt.phase === "compensation";
    switch (this.choice) {
      case "supply_success": {
        if (!this.result.trim()) return { why: undo ? "Type null, or the value the compensator would have returned." : "Type the result the step should have, as JSON." };
        const { value, why } = readJson(this.result);
        return why ? { why: `Not JSON yet: ${why}.`, wrong: true } : { command: { supply_success: { result: value } } };
      }
      case "declare_failure":
        if (!this.category.trim() || !this.message.trim()) return { why: "A failure has a category and a message." };
        return { command: { declare_failure: { failure: { category: this.category.trim(), message: this.message.trim(), retryable: this.retryable } } } };
      case "authorize_retry":
        return this.typed === "retry" ? { command: { authorize_retry: {} } } : { why: "Type retry to accept that the effect may happen twice." };
      default:
        return { why: "Choose what happened." };
    }
  }

  async submit() {
    const lost = this.mutation.state === "lost";
    // What a lost command did is asked under its key, though the attempt may be settled by now: by that very command.
    if (this.mutation.state === "sending" || this.mutation.state === "done" || (this.over && !lost)) return;
    if (!lost) {
      const { command } = this.command();
      if (!command) return;
      const said = JSON.stringify(command);
      // The same intent keeps its key, whatever became of its answers; another one gets its own.
      if (this.intent?.said !== said) {
        const key = freshKey();
        const body = JSON.stringify({ version: 1, attempt_id: this.attempt.attempt_id, attempt_generation: this.attempt.attempt_generation, idempotency_key: key, command });
        const { choice, result, category, message, retryable, typed } = this;
        this.intent = { said, body, attempt: this.attempt, form: { choice, result, category, message, retryable, typed } };
      }
    }
    owe(this.slot, this.intent);
    await this.mutation.send(this.intent.body);
    if (this.mutation.state === "lost") return;
    owe(this.slot, null);
    if (this.mutation.state === "done") this.context.acknowledged(this.attempt, this.mutation.answer);
    else this.refresh();
    this.context.changed(this.attempt.run_id);
  }

  view() {
    const { attempt, latest, mutation } = this;
    const locked = mutation.state === "sending" || mutation.state === "lost" || mutation.state === "done" || this.over;
    const { why, wrong } = locked ? {} : this.command();
    const done = mutation.state === "done";
    return this.frame(
      this.identity(),
      done ? h("div.done", { role: "status" }, notice("good", "Settled", null, null, h("p", null, acknowledgement(this.context, { attempt, document: mutation.answer })))) : null,
      !done && this.over && mutation.state !== "lost" && mutation.state !== "sending" ? h("div", { role: "alert" }, notice("warn", "It was settled meanwhile", `${say.attemptWord(latest, this.context.now).text}${latest.settled_by ? `, by the ${latest.settled_by}` : ""}. Nothing is left to decide here.`)) : null,
      done ? null : h("fieldset.choices", { disabled: locked }, h("legend", null, "What happened?"), CHOICES.map((choice) => this.choiceView(choice, wrong))),
      lostNotice(mutation, "The command", "Send it again: under the same key it counts once, and you are told its first answer."), refusedNotice(mutation),
      !locked && why && this.choice ? h(`p.hint${wrong ? ".tone-bad" : ""}`, { id: "resolve-hint", "aria-live": "polite" }, why) : null,
      h("div.buttons", null,
        button(done || this.over ? "Close" : "Cancel", () => this.close(), { key: "close", "data-first": true }),
        this.forgetButton(),
        done || (this.over && mutation.state !== "lost" && mutation.state !== "sending") ? null : mutation.state === "lost"
          ? h("button.primary", { type: "submit", key: "again", "data-confirm": true }, "Send again under the same key")
          : h("button.primary", { type: "submit", key: "confirm", "data-confirm": true, disabled: locked || Boolean(why) }, mutation.state === "sending" ? "Sending…" : "Confirm")));
  }

  identity() {
    const { attempt, latest, run, context } = this;
    const said = latest.error ? say.errorText(latest.error) : "nothing";
    return facts(["Run", runLink(context, attempt.run_id), run ? [" ", say.printable(run.function), " ", word(say.runWord(run))] : null], ["Step", id(attempt.step_id), ` (${attempt.phase})`],
      ["Attempt", `${attempt.attempt}, generation ${attempt.attempt_generation}`], ["Operation id", id(attempt.operation_id)],
      ["Deadline", run?.deadline ? until(run.deadline.at_ms, context.now) : "none"],
      ["Worker", attempt.worker ? [id(attempt.worker.instance_id), ` (${attempt.worker.transport}${attempt.worker.release_id ? `, release ${say.printable(attempt.worker.release_id)}` : ""})`] : "none"],
      ["It last said", said], attempt.unknown_at_ms === null ? null : ["Unknown since", when(attempt.unknown_at_ms), attempt.unknown_reason ? `: ${say.printable(attempt.unknown_reason)}` : ""]);
  }

  choiceView({ command, digit, title }, wrong) {
    const forbidden = this.latest.forbidden_commands.find((one) => one.command === command);
    const allowed = this.latest.allowed_commands.includes(command);
    const chosen = this.choice === command;
    const label = title(this.attempt.phase === "compensation");
    return h("div.choice", { key: command, class: allowed ? null : "forbidden" },
      h("label", null, h("input", { type: "radio", name: "resolution", value: command, checked: chosen, disabled: !allowed, onchange: () => this.choose(command) }),
        h("kbd", { "aria-hidden": "true" }, digit), " ", label),
      forbidden ? h("p.reason", null, say.printable(forbidden.reason), " ", h("code", null, `[${say.printable(forbidden.code)}]`)) : null,
      chosen ? this.fields(command, wrong) : null);
  }

  fields(command, wrong) {
    const undo = this.attempt.phase === "compensation";
    switch (command) {
      case "supply_success":
        return [h("label.field", null, h("span", null, "Result, as JSON"), h("textarea", { name: "result", rows: 4, spellcheck: "false", value: this.result, "aria-invalid": wrong ? "true" : null, "aria-describedby": "resolve-hint",
          oninput: (event) => this.set({ result: event.target.value }) })),
        h("p.quiet", null, undo ? "The step counts as undone, for good." : "The step counts as done, for good. If it did not happen, nothing will make it happen.")];
      case "declare_failure":
        return [h("label.field", null, h("span", null, "Category"), h("input", { name: "category", value: this.category, autocomplete: "off", oninput: (event) => this.set({ category: event.target.value }) })),
          h("label.field", null, h("span", null, "Message"), h("input", { name: "message", value: this.message, autocomplete: "off", oninput: (event) => this.set({ message: event.target.value }) })),
          h("label.check", null, h("input", { type: "checkbox", name: "retryable", checked: this.retryable, onchange: (event) => this.set({ retryable: event.target.checked }) }), "It may be retried"),
          h("p.quiet", null, this.retryable ? "The retry policy of the step may run it again. If it did happen, the effect may happen twice." : undo ? "If it did happen, its effect stays as it is." : "If it did happen, nothing undoes it: a failed step has no part in the unwind.")];
      default:
        return [h("p.warning", null, "The callback runs once more. If it did happen already, the effect may happen twice."),
          h("label.field", null, h("span", null, "Type retry"), h("input", { name: "confirmation", value: this.typed, autocomplete: "off", autocapitalize: "none", spellcheck: "false", oninput: (event) => this.set({ typed: event.target.value }) }))];
    }
  }

  choose(command) {
    if (this.latest.allowed_commands.includes(command)) this.set({ choice: command });
  }

  set(values) {
    Object.assign(this, values);
    // What was refused was another intent.
    if (this.mutation.state === "refused") this.mutation.state = "ready";
    this.context.drawDialogs();
  }

  keydown(event) {
    const choice = CHOICES.find(({ digit }) => digit === event.key);
    if (choice && !(event.target instanceof HTMLTextAreaElement) && event.target.type !== "text" && !event.ctrlKey && !event.metaKey && !event.altKey && this.mutation.state === "ready") {
      event.preventDefault();
      this.choose(choice.command);
      const fields = [...document.querySelectorAll("dialog[open] .choice .field :is(input, textarea)")];
      (fields.find((field) => !field.value) ?? fields[0])?.focus();
    }
  }
}

// --- Send ---

export class Send extends Dialog {
  constructor(context) {
    super(context, "Send an event");
    this.name = "";
    this.data = "{}";
    this.metadata = "";
    this.own = "";
    this.file = null;
    this.wide = true;
    this.slot = `${context.root}/events`;
    this.mutation = new Mutation(context, this.slot);
    this.intent = owedIn(this.slot);
    if (this.intent) {
      Object.assign(this, this.intent.form);
      this.mutation.owes(this.intent.body);
    }
    this.functions = [];
    this.learn();
  }

  async learn() {
    try {
      this.functions = (await ask(`${this.context.root}/functions?limit=500`)).items;
    } catch (error) {
      this.context.failed(error);
    }
    this.context.drawDialogs();
  }

  request() {
    if (!this.name) return { why: "An event has a name." };
    const metadata = new Map();
    for (const line of this.metadata.split("\n").filter((each) => each.trim())) {
      const at = line.indexOf("=");
      const name = line.slice(0, Math.max(0, at)).trim();
      if (!name) return { why: `Metadata is one name=value a line, not ${say.printable(line.slice(0, 40))}.`, wrong: true };
      if (metadata.has(name)) return { why: `Metadata has ${say.printable(name.slice(0, 40))} twice.`, wrong: true };
      metadata.set(name, line.slice(at + 1).trim());
    }
    let content;
    if (this.file) content = `"payload_base64":"${this.file.base64}"`;
    else {
      const { why } = readJson(this.data);
      if (why) return { why: `The data is not JSON yet: ${why}.`, wrong: true };
      // The text itself is sent: read and written again, a number could lose digits.
      content = `"data":${this.data}`;
    }
    return { said: `{"name":${JSON.stringify(this.name)},${content},"metadata":${JSON.stringify(Object.fromEntries(metadata))}` };
  }

  async submit() {
    if (this.mutation.state === "sending" || this.mutation.state === "done") return;
    if (this.mutation.state !== "lost") {
      const { said } = this.request();
      if (!said) return;
      const keyed = `${said},"idempotency_key":`;
      if (!this.intent?.body.startsWith(keyed) || this.intent.form.own !== this.own) {
        const { name, data, metadata, own, file } = this;
        this.intent = { body: `${keyed}${JSON.stringify(own || freshKey())}}`, form: { name, data, metadata, own, file } };
      }
    }
    owe(this.slot, this.intent);
    await this.mutation.send(this.intent.body);
    if (this.mutation.state !== "lost") owe(this.slot, null);
    if (this.mutation.state === "done") this.context.changed(null);
  }

  view() {
    const { mutation } = this;
    const locked = mutation.state !== "ready" && mutation.state !== "refused";
    const { why, wrong } = this.request();
    const names = [...new Set(this.functions.flatMap((one) => one.triggers.map((trigger) => trigger.event_name)))];
    const field = (label, element) => h("label.field", null, h("span", null, label), element);
    return this.frame(
      h("fieldset", { disabled: locked }, h("legend.unseen", null, "The event"),
        field("Name", h("input", { name: "name", value: this.name, list: "event-names", autocomplete: "off", required: true, "data-first": true, oninput: (event) => this.set({ name: event.target.value }) })),
        h("datalist", { id: "event-names" }, names.map((name) => h("option", { key: name, value: name }))),
        this.file ? h("p", null, "Payload: ", h("strong", null, say.printable(this.file.name)), `, ${this.file.size} bytes `, button("Use JSON instead", () => this.set({ file: null }), { class: "small" }))
          : field("Data, as JSON", h("textarea", { name: "data", rows: 6, spellcheck: "false", value: this.data, oninput: (event) => this.set({ data: event.target.value }) })),
        h("details", null, h("summary", null, "Bytes, metadata, idempotency key"),
          field("Send a file's bytes instead", h("input", { name: "file", type: "file", onchange: (event) => this.read(event.target.files[0]) })),
          field("Metadata, one name=value a line", h("textarea", { name: "metadata", rows: 2, spellcheck: "false", value: this.metadata, oninput: (event) => this.set({ metadata: event.target.value }) })),
          field("Idempotency key (a fresh one unless given)", h("input", { name: "key", value: this.own, autocomplete: "off", oninput: (event) => this.set({ own: event.target.value }) })))),
      mutation.state === "done" ? this.receipt(mutation.answer) : null,
      lostNotice(mutation, "The event", "Send it again: under the same key it is accepted once."), refusedNotice(mutation),
      !locked && why && (wrong || this.name) ? h(`p.hint${wrong ? ".tone-bad" : ""}`, { "aria-live": "polite" }, why) : null,
      h("div.buttons", null, button(mutation.state === "done" ? "Close" : "Cancel", () => this.close(), { key: "close" }),
        this.forgetButton(),
        mutation.state === "done" ? button("Send another", () => this.anew(), { key: "another" })
          : h("button.primary", { type: "submit", key: "send", "data-confirm": true, disabled: mutation.state === "sending" || (mutation.state !== "lost" && Boolean(why)) },
            mutation.state === "sending" ? "Sending…" : mutation.state === "lost" ? "Send again under the same key" : "Send")));
  }

  receipt(answer) {
    const bound = this.functions.filter((one) => one.triggers.some((trigger) => trigger.event_name === this.name));
    const idle = bound.filter((one) => !one.workers.length);
    return h("div.done", { role: "status" }, notice("good", answer.status === "replayed" ? "Accepted before (replayed)" : "Accepted", null, null,
      h("p", null, "Event ", eventLink(this.context, answer.event_id), `, ${say.plural(answer.matched, "trigger")} matched, routing generation `, id(answer.routing_generation), ".")),
    answer.matched === 0 ? notice("warn", "No trigger matches", `no function is bound to ${say.printable(this.name)}, so no run begins.`) : null,
    idle.length ? notice("warn", "No worker can run it", `${idle.map((one) => say.printable(one.function)).join(", ")}: the work stays queued until a worker comes.`) : null);
  }

  async read(file) {
    if (file) this.set({ file: { name: file.name, size: file.size, base64: base64Of(new Uint8Array(await file.arrayBuffer())) } });
  }

  set(values) {
    Object.assign(this, values);
    if (this.mutation.state === "refused") this.mutation.state = "ready";
    this.context.drawDialogs();
  }
}

// --- Cancel ---

export class Cancel extends Dialog {
  constructor(context, run) {
    super(context, "Cancel this run?");
    this.run = run;
    this.mutation = new Mutation(context, `${context.root}/runs/${segment(run.run_id)}/cancel`);
  }

  async submit() {
    await this.mutation.send("{}");
    this.context.changed(this.run.run_id);
  }

  view() {
    const { mutation, run } = this;
    const done = mutation.state === "done";
    return this.frame(
      facts(["Run", id(run.run_id)], ["Function", say.printable(run.function)]),
      done ? h("div", { role: "status" }, notice("good", mutation.answer.status === "replayed" ? "It was asked to stop before" : "The stop is recorded", "a callback that has begun is not interrupted; what it answers still counts."))
        : h("p", null, "No new step begins. What has succeeded is undone in reverse order; a callback that has begun is not interrupted."),
      lostNotice(mutation, "The stop", "Asking again is safe."), refusedNotice(mutation),
      h("div.buttons", null, button(done ? "Close" : "Keep it running", () => this.close(), { key: "close", "data-first": true }),
        done ? null : h("button.danger", { type: "submit", key: "confirm", "data-confirm": true, disabled: mutation.state === "sending" }, mutation.state === "sending" ? "Sending…" : mutation.state === "lost" ? "Ask again" : "Cancel run")));
  }
}

// --- Token, help ---

export class Token extends Dialog {
  constructor(context, why) {
    super(context, "This server asks for a token");
    this.why = why;
    this.text = "";
  }

  submit() {
    const text = this.text.trim();
    if (!text) return;
    keepToken(text);
    location.reload();
  }

  view() {
    return this.frame(h("p", null, "It is kept for this tab, until the tab is closed."), this.why ? notice("bad", "Refused", this.why) : null,
      h("label.field", null, h("span", null, "Token"), h("input", { name: "token", type: "password", value: this.text, autocomplete: "off", "data-first": true, oninput: (event) => { this.text = event.target.value; this.context.drawDialogs(); } })),
      h("div.buttons", null, button("Close", () => this.close(), { key: "close" }), h("button.primary", { type: "submit", key: "confirm", disabled: !this.text.trim() }, "Use it")));
  }
}

const KEYS = [["1 – 6", "Runs, Unknown, Events, Workers, Functions, Server"], ["j  k", "next, previous row"], ["Enter", "open the row"], ["/", "filter"], ["u", "next Unknown"], ["R", "resolve the row, or what is Unknown of this run"],
  ["X", "cancel this run"], ["s", "send an event"], ["y", "copy the id"], ["[  ]", "previous, next run"], ["+  -  0", "zoom the time axis in, out, all of it"], ["h  l", "earlier, later on it"], ["z", "fold long waits"], ["g  G", "first, last row"], ["r", "ask for everything again"], ["Esc", "back, or close"], ["?", "this help"]];

export class Help extends Dialog {
  constructor(context) {
    super(context, "Keys");
  }

  view() {
    return this.frame(h("dl.keys", null, KEYS.map(([key, what]) => h("div", { key }, h("dt", null, h("kbd", null, key)), h("dd", null, what)))),
      h("div.buttons", null, button("Close", () => this.close(), { key: "close" })));
  }
}
