// The pages but for a run's: what each asks for, and what it shows of it. Pure functions of the projection.

import { h } from "./dom.js";
import { lookOf, resourceOf, runOf, runsOf } from "./model.js";
import { query, segment } from "./api.js";
import * as say from "./say.js";
import { ago, block, button, copy, eventLink, facts, id, link, looked, notice, payload, runLink, serial, table, when, word } from "./parts.js";

const LIST = 100;
const STATUSES = [["running", "Running"], ["definition_blocked", "Blocked"], ["stopping", "Cancelling or timing out"], ["compensating", "Compensating"],
  ["ended", "Ended"]];
const OUTCOMES = [["succeeded", "Succeeded"], ["failed", "Failed"], ["cancelled", "Cancelled"], ["timed_out", "Timed out"]];
const RECOVERIES = [["not_required", "Not required"], ["fully_compensated", "Fully compensated"], ["partially_compensated", "Partially compensated"],
  ["compensation_failed", "Compensation failed"]];
const ATTENTIONS = [["unknown", "Unknown"], ["blocked", "Blocked"], ["no_worker", "No worker"]];
const FILTERS = ["status", "outcome", "recovery", "attention", "function", "application", "event", "q"];

const of = (context, kind, path, more) => ({ kind, key: `${context.root}${path}`, ...more });
const PORTIONS = ["First", "More"];
const workersOf = (context, route) => of(context, "workers", `/workers${query({ limit: 500, cursor: route.query.get("cursor") })}`);
const functionsOf = (context, route) => of(context, "functions", `/functions${query({ limit: 500, cursor: route.query.get("cursor") })}`);
export const serverOf = () => ({ kind: "server", key: "/v1/server" });

// --- Runs ---

export const filtersOf = (route) => Object.fromEntries(FILTERS.map((name) => [name, route.query.get(name)]));
const runsKey = (context, route) => of(context, "runs", `/runs${query({ ...filtersOf(route), cursor: route.query.get("cursor"), limit: LIST })}`);

const owedEvent = (context) => context.owedEvent && notice("warn", "An answer was lost", `the event ${say.printable(context.owedEvent.form.name)} may have been accepted or not.`, null,
  h("p", null, button("Find out", () => context.openSend())));

export const runs = {
  title: "Runs",
  wants: (context, route) => [runsKey(context, route)],
  view(context, state, route) {
    const { key } = runsKey(context, route);
    const resource = resourceOf(state, key);
    const filtered = FILTERS.some((name) => route.query.get(name));
    return [
      h("div.heading", null, h("h1", null, "Runs"), button("Send an event", () => context.openSend(), { class: "primary" })),
      owedEvent(context),
      filters(context, route),
      looked(lookOf(state, resource), resource, {
        what: "runs",
        empty: filtered
          ? [h("p", null, "No run matches these filters."), link(context, "/", "Show all runs", { class: "button" })]
          : [h("p", null, "There are no runs yet."), h("p.quiet", null, "An event that a trigger matches starts one: send it here, or with ",
            h("code", null, "ryusen send NAME -d '{}'"), ".")],
        show: () => [runTable(context, context.portion(runsOf(state, key))), pager(context, route, resource.document)],
      }),
    ];
  },
};

function filters(context, route) {
  const select = (name, label, options) => h("label", { key: name }, h("span", null, label),
    h("select", { name, value: route.query.get(name) ?? "", onchange: (event) => context.filter(name, event.target.value) },
      h("option", { value: "" }, "Any"), options.map(([value, text]) => h("option", { key: value, value }, text))));
  const text = (name, label, hint) => h("label", { key: name }, h("span", null, label),
    h("input", { name, type: "search", value: route.query.get(name) ?? "", placeholder: hint, autocomplete: "off", spellcheck: "false",
      "data-filter": name === "q", oninput: (event) => context.filter(name, event.target.value, { typed: true }) }));
  const event = route.query.get("event");
  return h("form.filters", { role: "search", "aria-label": "Filter runs", onsubmit: (submitted) => submitted.preventDefault() },
    text("q", "Find", "run id or function  /"), select("status", "Status", STATUSES), select("outcome", "Outcome", OUTCOMES),
    select("recovery", "Recovery", RECOVERIES), select("attention", "Needs", ATTENTIONS), text("function", "Function", "exact id"),
    event ? h("span.chip", { key: "event" }, "Event ", id(event), button("×", () => context.filter("event", ""), { class: "small", "aria-label": "Show runs of all events" })) : null,
    FILTERS.some((name) => route.query.get(name)) ? link(context, "/", "Clear", { class: "button", key: "clear" }) : null);
}

const RUN_COLUMNS = [["Status", "fixed"], ["Recovery", "fixed wide"], ["Function", "named"], ["Run", "whole"], ["Age", "number"], ["Took", "number"], ["Steps", "number"], ["Needs", "fixed"]];

function runTable(context, list) {
  return table("Runs", RUN_COLUMNS, list.map((run) => ({
    key: run.run_id,
    props: { class: run.attention ? `needs-${run.attention}` : null, memo: `${serial(run)} ${say.age(context.now - run.created_at_ms)}` },
    cells: () => [
      word(say.runWord(run)), word(say.recoveryWord(run.recovery, run.unwind_counts)), functionName(run),
      runLink(context, run.run_id, { "data-row": true }), ago(run.created_at_ms, context.now),
      run.ended_at_ms === null ? h("span.quiet", null, "…") : say.span(run.ended_at_ms - run.created_at_ms),
      `${run.steps_completed}/${run.steps_declared}`, attention(context, run),
    ],
  })), { className: "rows runs" });
}

export const functionName = (run) => h("span.name", { title: `${say.printable(run.application)}/${say.printable(run.function)}` },
  run.application === "default" ? null : h("span.quiet", null, `${say.printable(run.application)}/`), say.printable(run.function));

export function attention(context, run) {
  if (!run.attention) return null;
  const said = word(say.attentionWord(run.attention));
  return run.attention_run_id && run.attention_run_id !== run.run_id
    ? [said, " ", h("span.quiet", null, "in "), runLink(context, run.attention_run_id)] : said;
}

export function pager(context, route, page, [first, more] = ["Newest", "Older"]) {
  const at = route.query.get("cursor");
  if (!at && !page.next_cursor) return null;
  return h("nav.pager", { "aria-label": "Pages" },
    at ? link(context, context.with(route, { cursor: null }), first, { class: "button" }) : null,
    page.next_cursor ? link(context, context.with(route, { cursor: page.next_cursor }), more, { class: "button", rel: "next" }) : null);
}

// --- Unknown ---

const unknownKey = (context, route) => of(context, "attempts", `/attempts${query({ state: "unknown", limit: LIST, cursor: route.query.get("cursor") })}`);
const COMMANDS = { supply_success: "Supply result", declare_failure: "Declare failure", authorize_retry: "Authorize retry" };

export const unknown = {
  title: "Unknown",
  wants: (context, route) => [unknownKey(context, route)],
  view(context, state, route) {
    const resource = resourceOf(state, unknownKey(context, route).key);
    return [
      h("div.heading", null, h("h1", null, "Unknown")),
      h("p.lead", null, "An effect was allowed to begin, and nobody can establish what it did. Ask the outside system for the operation id, then say what happened."),
      acknowledgements(context, null),
      looked(lookOf(state, resource), resource, {
        what: "Unknown attempts",
        empty: [h("p", null, word({ glyph: "✓", text: "Nothing is Unknown.", tone: "good" })), h("p.quiet", null, "Every effect that was allowed to begin has an answer, or its worker is still in contact.")],
        show: (document) => [table("Unknown attempts", [["Unknown for", "number"], ["Run", "whole"], ["Step", "step"], ["Phase", "short"], ["Attempt", "number"], ["Generation", "number"],
          ["Allowed"], ["", "act"]], context.portion(document.items).map((attempt) => ({
          key: attempt.attempt_id,
          cells: [ago(attempt.unknown_at_ms ?? context.now, context.now), runLink(context, attempt.run_id, { "data-row": true }), id(attempt.step_id),
            attempt.phase, String(attempt.attempt), String(attempt.attempt_generation),
            attempt.allowed_commands.map((command) => COMMANDS[command] ?? command).join(", ") || "nothing",
            resolveButton(context, attempt)],
        })), { className: "rows" }), pager(context, route, document)],
      }),
    ];
  },
};

export const resolveButton = (context, attempt) => button("Resolve", () => context.openResolve(attempt),
  { class: "primary", "data-resolve": true, "aria-label": `Resolve ${say.printable(attempt.step_id)}, attempt ${attempt.attempt}` });

export function acknowledgements(context, runId) {
  const concerned = (attempt) => runId === null || attempt.run_id === runId;
  const list = context.acknowledgements.filter((one) => concerned(one.attempt));
  return [
    context.owed.filter(concerned).map((attempt) => notice("warn", "An answer was lost",
      `the command for step ${say.printable(attempt.step_id)}, attempt ${attempt.attempt}, may have been carried out or not.`, null,
      h("p", null, button("Find out", () => context.openResolve(attempt))))),
    list.length ? acknowledged(context, list) : null,
  ];
}

function acknowledged(context, list) {
  return h("section.acknowledged", { "aria-label": "Settled here" }, h("h2", null, "Settled here"),
    h("ul", null, list.map((one) => h("li", { key: one.key }, acknowledgement(context, one)))));
}

export function acknowledgement(context, { attempt, document }) {
  const { transition, successor } = document;
  return [h("strong", null, document.status === "replayed" ? "Applied before (replayed)" : "Applied"), ": ", id(attempt.step_id), ` (${attempt.phase}), attempt ${attempt.attempt}, generation ${document.attempt_generation} of `,
    runLink(context, attempt.run_id), `. Attempt: ${say.printable(transition.attempt)}; step: ${say.printable(transition.step)}; run: ${say.printable(transition.run)}.`,
    successor ? [" Next: attempt ", String(successor.attempt), `, generation ${successor.attempt_generation}, `, id(successor.attempt_id), "."] : null];
}

// --- Events ---

const eventsKey = (context, route) => of(context, "events", `/events${query({ limit: LIST, name: route.query.get("name"), cursor: route.query.get("cursor") })}`);

export const events = {
  title: "Events",
  wants: (context, route) => [eventsKey(context, route)],
  view(context, state, route) {
    const resource = resourceOf(state, eventsKey(context, route).key);
    return [
      h("div.heading", null, h("h1", null, "Events"), button("Send an event", () => context.openSend(), { class: "primary" })),
      owedEvent(context),
      h("form.filters", { role: "search", "aria-label": "Filter events", onsubmit: (event) => event.preventDefault() },
        h("label", null, h("span", null, "Name"), h("input", { name: "name", type: "search", value: route.query.get("name") ?? "", placeholder: "exact name  /",
          "data-filter": true, autocomplete: "off", spellcheck: "false", oninput: (event) => context.filter("name", event.target.value, { typed: true }) }))),
      looked(lookOf(state, resource), resource, {
        what: "events",
        empty: [h("p", null, route.query.get("name") ? "No event has this name." : "There are no events yet.")],
        show: (document) => [table("Events", [["Name"], ["Event", "whole"], ["Age", "number"], ["Matched", "number"], ["Fan-out", "fixed"], ["Routing generation"]],
          context.portion(document.items).map((event) => ({
            key: event.event_id,
            props: { memo: `${serial(event)} ${say.age(context.now - event.received_at_ms)}` },
            cells: () => [h("span.name", null, say.printable(event.name)),
              link(context, `/events/${encodeURIComponent(event.event_id)}`, h("code.id", null, say.printable(event.event_id)), { "data-row": true }),
              ago(event.received_at_ms, context.now), event.matched === 0 ? h("span.quiet", null, "none") : String(event.matched),
              word(say.expansionWord(event.expansion)), id(event.routing_generation)],
          })), { className: "rows" }), pager(context, route, document)],
      }),
    ];
  },
};

const eventKey = (context, route) => of(context, "event", `/events/${segment(route.id)}`, { id: route.id });

// Every page of the event's runs: as many as it has matches.
function eventRuns(context, route, state) {
  const keys = [];
  let cursor = null;
  do {
    keys.push(of(context, "runs", `/runs${query({ event: route.id, cursor, limit: 500 })}`));
    cursor = resourceOf(state, keys.at(-1).key)?.document?.next_cursor;
  } while (cursor);
  return keys;
}

const manifestKey = (context, match) => of(context, "manifest", `/applications/${segment(match.application)}/manifests/${segment(match.manifest_generation)}`, { fixed: true });
const routingKey = (context, generation) => of(context, "routing-generation", `/routing/${segment(generation)}`, { fixed: true });

export const event = {
  title: "Event",
  wants(context, route, state) {
    const document = resourceOf(state, eventKey(context, route).key)?.document;
    const more = document ? [routingKey(context, document.routing_generation), ...document.matches.map((match) => manifestKey(context, match))] : [];
    return [eventKey(context, route), ...eventRuns(context, route, state), ...more];
  },
  view(context, state, route) {
    const resource = resourceOf(state, eventKey(context, route).key);
    return looked(lookOf(state, resource), resource, { what: "event", titled: "Event", show: (document) => eventView(context, state, document) });
  },
};

function eventView(context, state, document) {
  const routing = resourceOf(state, routingKey(context, document.routing_generation).key)?.document;
  const manifests = new Map(document.matches.map((match) => [manifestKey(context, match).key, match]));
  return [
    h("div.heading", null, h("div.title", null, h("h1", null, say.printable(document.name)), h("p.subtitle", null, id(document.event_id), copy(context, document.event_id, "the event's id")))),
    facts(["Received", when(document.received_at_ms)], ["Fan-out", word(say.expansionWord(document.expansion))],
      ["Matched", say.plural(document.matched, "trigger")],
      ...Object.entries(document.metadata).map(([name, said]) => [`Metadata ${say.printable(name)}`, say.printable(said)])),
    h("section", null, h("h2", null, "Trigger matches and runs"),
      document.matches.length ? table("Trigger matches", [["Status", "fixed"], ["Function"], ["Run", "whole"], ["Trigger"], ["Application"], ["Manifest generation"]],
        context.portion(document.matches).map((match) => {
          const run = match.run_id ? runOf(state, match.run_id) : null;
          return { key: `${match.application} ${match.trigger_id}`, cells: [run ? word(say.runWord(run)) : h("span.quiet", null, match.run_id ? "…" : "not created yet"), h("span.name", null, say.printable(match.function)),
            match.run_id ? runLink(context, match.run_id, { "data-row": true }) : null, id(match.trigger_id), say.printable(match.application), id(match.manifest_generation)] };
        }), { className: "rows" })
        : notice("warn", "No trigger matches", "No function was bound to this name in the routing generation the event was accepted under. That never changes; send it again once one is.")),
    h("section", null, h("h2", null, "Routing generation"),
      facts(["Routing generation", id(document.routing_generation)],
        ...(routing ? [["Activated", routing.activated_at_ms === null ? "never: it routes nothing" : when(routing.activated_at_ms)], ["Now", routing.active ? "active" : "replaced by a newer one"]] : [])),
      routing ? table("Applications of this routing generation", [["Application"], ["Manifest generation"]], Object.entries(routing.applications).map(([application, generation]) =>
        ({ key: application, cells: [say.printable(application), id(generation)] }))) : null),
    manifests.size ? h("section", null, h("h2", null, "Manifests it was routed by"), [...manifests].map(([key, match]) => manifestView(context, resourceOf(state, key)?.document, match))) : null,
    h("section", null, h("h2", null, "Payload"), payload(document.payload_base64)),
  ];
}

function manifestView(context, document, match) {
  const key = match.manifest_generation;
  if (!document) return h("p.loading", { key }, "Loading manifest…");
  return h("details.manifest", { key, open: true }, h("summary", null, say.printable(document.application), " ", id(document.manifest_generation), document.active ? " (active)" : " (replaced)"),
    facts(["Digest", id(document.digest)], ["Activated", when(document.activated_at_ms)], ["Parent", document.expected_parent ? id(document.expected_parent) : "none"],
      ["Functions", document.functions.map((one) => `${say.printable(one.id)}${one.timeout_ms ? ` (timeout ${say.span(one.timeout_ms)})` : ""}`).join(", ")],
      ["Triggers", document.triggers.map((one) => `${say.printable(one.event_name)} → ${say.printable(one.function)}`).join(", ")]));
}

// --- Functions ---

export const functions = {
  title: "Functions",
  wants: (context, route) => [functionsOf(context, route)],
  view(context, state, route) {
    const resource = resourceOf(state, functionsOf(context, route).key);
    return [
      h("div.heading", null, h("h1", null, "Functions")),
      looked(lookOf(state, resource), resource, {
        what: "functions",
        empty: [h("p", null, "No application has published its functions yet."), h("p.quiet", null, "Start a worker: ", h("code", null, "ryusen worker TARGET"), ".")],
        show: (document) => [table("Functions", [["Function"], ["Application"], ["Started by"], ["Timeout", "number"], ["Who can run it"], ["Manifest generation"]],
          document.items.map((one) => ({
            key: `${one.application} ${one.function}`,
            cells: [link(context, `/${query({ function: one.function, application: one.application })}`, h("span.name", null, say.printable(one.function)), { "data-row": true }), say.printable(one.application),
              one.triggers.length ? one.triggers.map((trigger) => say.printable(trigger.event_name)).join(", ") : h("span.quiet", null, "only other functions"),
              one.timeout_ms === null ? h("span.quiet", null, "none") : say.span(one.timeout_ms),
              one.workers.length ? h("span", { title: one.workers.map((each) => say.printable(each)).join(", ") }, say.plural(one.workers.length, "worker"), " ",
                h("code.id", null, say.printable(one.workers[0])), one.workers.length > 1 ? ` and ${one.workers.length - 1} more` : null) : word(say.attentionWord("no_worker")),
              id(one.manifest_generation)],
          })), { className: "rows" }), pager(context, route, document, PORTIONS)],
      }),
    ];
  },
};

// --- Workers ---

export const workers = {
  title: "Workers",
  wants: (context, route) => [workersOf(context, route)],
  view(context, state, route) {
    const resource = resourceOf(state, workersOf(context, route).key);
    return [
      h("div.heading", null, h("h1", null, "Workers")),
      looked(lookOf(state, resource), resource, {
        what: "workers",
        empty: [h("p", null, "No worker is connected."), h("p.quiet", null, "Work stays queued until one is: ", h("code", null, "ryusen worker TARGET"), ".")],
        show: (document) => [h("div.cards", null, document.items.map((worker) => workerCard(context, worker))), pager(context, route, document, PORTIONS)],
      }),
    ];
  },
};

function workerWord(worker) {
  if (!worker.connected) return worker.draining ? { glyph: "○", text: "Drained", tone: "muted" } : { glyph: "…", text: "Away", tone: "warn" };
  return worker.draining ? { glyph: "◌", text: "Draining", tone: "warn" } : { glyph: "●", text: "Connected", tone: "accent" };
}

const software = (one) => (one ? `${say.printable(one.name)} ${say.printable(one.version)}` : "not told");

function workerCard(context, worker) {
  const { contract } = worker;
  return h("article.card", { key: `${worker.application} ${worker.instance_id}`, "aria-label": `Worker ${say.printable(worker.instance_id)}` },
    h("header", null, h("h2", null, id(worker.instance_id)), word(workerWord(worker))),
    facts(["Application", say.printable(worker.application)], ["Release", worker.release_id ? id(worker.release_id) : h("span.quiet", null, "none")],
      ["Transport", worker.transport], ["In flight", `${worker.in_flight} of ${worker.capacity}`, h("meter", { min: 0, max: Math.max(1, worker.capacity), value: worker.in_flight, "aria-label": "In flight" })],
      ["Draining", worker.draining ? "yes" : "no"], ["Last contact", ago(worker.last_contact_at_ms, context.now), " ago"],
      worker.last_failure ? ["Last failure", h("span.tone-bad", null, say.printable(worker.last_failure)), worker.last_failure_at_ms ? [" ", when(worker.last_failure_at_ms)] : null] : ["Last failure", h("span.quiet", null, "none")]),
    h("details", null, h("summary", null, "Transport and contract"),
      facts(["Session", worker.session_id ? id(worker.session_id) : "none"], ["Connected", worker.connected_at_ms === null ? "never" : when(worker.connected_at_ms)],
        worker.transport === "http" ? ["Last answer", worker.last_success_at_ms ? when(worker.last_success_at_ms) : "none yet"] : null,
        ["Protocol", `${contract.protocol_version}, value codec ${contract.value_codec}${contract.features.length ? `, features ${contract.features.map((one) => say.printable(one)).join(", ")}` : ""}`],
        ["Capabilities", worker.capabilities.length ? worker.capabilities.map((one) => say.printable(one)).join(", ") : "none"],
        ["SDK", software(worker.sdk)], ["Runtime", software(worker.runtime)],
        ["Manifest digest", worker.manifest_digest ? id(worker.manifest_digest) : "none"],
        ["Functions", worker.functions.map((one) => say.printable(one)).join(", ")])));
}

// --- Server ---

const applicationsOf = (context) => of(context, "applications", "/applications?limit=500");
const routingOf = (context) => of(context, "routing", "/routing?limit=20");
const releasesOf = (context) => of(context, "releases", "/releases?limit=500");

export const server = {
  title: "Server",
  wants: (context) => [serverOf(), applicationsOf(context), routingOf(context), releasesOf(context)],
  view(context, state) {
    const resource = resourceOf(state, serverOf().key);
    return [h("div.heading", null, h("h1", null, "Server")), looked(lookOf(state, resource), resource, { what: "server", show: (document) => serverView(context, state, document) })];
  },
};

function serverView(context, state, document) {
  const items = (resource) => resourceOf(state, resource.key)?.document?.items ?? [];
  const none = (ms, otherwise) => (ms === null ? otherwise : say.span(ms));
  return [
    h("div.cards", null,
      h("article.card", null, h("h2", null, "What it is"), facts(["Addresses", document.addresses.join(", ")], ["Version", say.printable(document.product_version)], ["Protocol", String(document.protocol_version)],
        ["Database", document.database.ephemeral ? "in memory only: gone with the server" : say.printable(document.database.path)], ["Schema", String(document.database.schema_version)], ["Started", when(document.started_at_ms)])),
      h("article.card", null, h("h2", null, "What it holds"), facts(...Object.entries(document.counts).map(([name, count]) => [COUNTS[name] ?? name, String(count)]))),
      h("article.card", null, h("h2", null, "What it does by default"), facts(["Lease", `${say.span(document.lease_ms)}: a worker silent for longer leaves its effects Unknown`], ["Heartbeat", `every ${say.span(document.heartbeat_ms)}`],
        ["Reconnect grace", `${say.span(document.reconnect_grace_ms)} after the server started`], ["Run timeout", none(document.default_run_timeout_ms, "none unless a function declares one")], ["Longest run timeout", none(document.max_run_timeout_ms, "no bound")]))),
    h("section", null, h("h2", null, "Applications"), items(applicationsOf(context)).length ? table("Applications", [["Application"], ["Functions", "number"], ["Triggers", "number"], ["Active manifest generation"], ["Activated"]],
      items(applicationsOf(context)).map((one) => ({ key: one.application, cells: [say.printable(one.application), String(one.functions), String(one.triggers), id(one.manifest_generation), when(one.activated_at_ms)] }))) : h("p.quiet", null, "None has published yet.")),
    h("section", null, h("h2", null, "Routing generations, newest first"), table("Routing generations", [["Routing generation"], ["Applications"], ["Activated"], ["State"]],
      items(routingOf(context)).map((one) => ({ key: one.routing_generation, cells: [id(one.routing_generation), Object.keys(one.applications).map((name) => say.printable(name)).join(", ") || h("span.quiet", null, "none"),
        one.activated_at_ms === null ? "" : when(one.activated_at_ms), one.active ? "active" : h("span.quiet", null, "replaced")] })))),
    h("section", null, h("h2", null, "Releases, in the order they were first seen"), items(releasesOf(context)).length ? table("Releases", [["Release"], ["Application"], ["First seen"], ["Instances now", "number"]],
      items(releasesOf(context)).map((one) => ({ key: `${one.application} ${one.release_id}`, cells: [id(one.release_id), say.printable(one.application), when(one.first_seen_at_ms), String(one.instances.length)] }))) : h("p.quiet", null, "None.")),
    h("section", null, h("h2", null, "Limits"), h("details", null, h("summary", null, "Show the limits"), block(JSON.stringify(document.limits, null, 2), null))),
  ];
}

const COUNTS = { events: "Events", runs: "Runs", moving: "Not ended", unknown: "Unknown attempts", blocked: "Blocked runs", workers: "Workers connected" };

export const missing = {
  title: "Not found",
  wants: () => [],
  view: (context) => [h("h1", null, "There is no such page"), link(context, "/", "Show runs", { class: "button" })],
};
