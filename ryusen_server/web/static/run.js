// The page of one run: how it stands and why, its steps on a time axis and as a table, attempts, history, input and output, and the defaults
// the server went by.

import { h } from "./dom.js";
import { isOver, lookOf, resourceOf, runOf } from "./model.js";
import { query, segment } from "./api.js";
import { sentences } from "./history.js";
import * as say from "./say.js";
import * as timeline from "./timeline.js";
import { acknowledgements, attention, functionName, resolveButton, serverOf } from "./pages.js";
import { ago, block, button, copy, eventLink, facts, failure, id, link, looked, notice, payload, runLink, serial, table, until, value, when, word } from "./parts.js";

const TABS = [["timeline", "Timeline"], ["attempts", "Attempts"], ["history", "History"], ["data", "Input and output"], ["logs", "Logs"], ["why", "Why"]];
const ROWS_FIRST = 200;
const LOGS = 20;
const NOTHING = [];

const runKey = (context, route) => ({ kind: "run", key: `${context.root}/runs/${segment(route.id)}`, id: route.id });
const historyKey = (context, route) => ({ kind: "history", key: `${context.root}/runs/${segment(route.id)}/history`, id: route.id });
const logsKey = (context, route) => ({ kind: "logs", id: route.id,
  key: `${context.root}/runs/${segment(route.id)}/logs${query({ attempt: route.query.get("attempt"), cursor: route.query.get("cursor"), limit: LOGS })}` });
const tabOf = (route) => (TABS.some(([name]) => name === route.query.get("tab")) ? route.query.get("tab") : "timeline");

export const run = {
  title: "Run",
  wants(context, route) {
    const tab = tabOf(route);
    return [runKey(context, route), serverOf(), ...(["timeline", "history", "why"].includes(tab) ? [historyKey(context, route)] : []), ...(tab === "logs" ? [logsKey(context, route)] : [])];
  },
  view(context, state, route) {
    const resource = resourceOf(state, runKey(context, route).key);
    const known = runOf(state, route.id);
    const look = lookOf(state, resource);
    if (look === "loading" && known) return [head(context, known), h("p.loading", { role: "status" }, "Loading run…")];
    return looked(look, resource, { what: "run", titled: "Run", show: (document) => runView(context, state, route, { ...document, ...known }) });
  },
};

function head(context, run) {
  const live = run.status === "running" || run.status === "definition_blocked";
  return h("div.heading", null,
    h("div.title", null, h("h1", null, functionName(run)), h("p.subtitle", null, id(run.run_id), copy(context, run.run_id, "the run's id"))),
    h("div.actions", null,
      run.status === "definition_blocked" ? button("Ask the code again", () => context.rediscover(run)) : null,
      live || (run.status === "stopping" && run.stop?.reason !== "cancelled") ? button("Cancel run", () => context.openCancel(run), { class: "danger" }) : null));
}

function runView(context, state, route, run) {
  const tab = tabOf(route);
  const took = (run.ended_at_ms ?? context.now) - run.created_at_ms;
  return [
    head(context, run),
    h("div.state", { "aria-label": "How the run stands" },
      h("div", null, h("span.label", null, "Status"), word(say.runWord(run)), whyEnded(run)),
      run.outcome && run.status !== "ended" ? h("div", null, h("span.label", null, "Outcome"), word(say.runWord({ ...run, status: "ended" }))) : null,
      h("div", null, h("span.label", null, "Recovery"), run.recovery ? word(say.recoveryWord(run.recovery, run.unwind_counts)) : h("span.quiet", null, "none yet"), whyPartial(run)),
      h("div", null, h("span.label", null, run.ended_at_ms === null ? "Running for" : "Took"), h("span", null, run.ended_at_ms === null ? say.soFar(took) : say.span(took))),
      h("div", null, h("span.label", null, "Steps"), h("span", null, `${run.steps_completed}/${run.steps_declared}`)),
      run.attention ? h("div", null, h("span.label", null, "Needs"), h("span", null, attention(context, run))) : null),
    banners(context, run),
    acknowledgements(context, run.run_id),
    facts(["Started", when(run.created_at_ms)], run.ended_at_ms === null ? null : ["Ended", when(run.ended_at_ms)],
      run.event_id ? ["Event", eventLink(context, run.event_id)] : null,
      run.parent ? ["Invoked by", runLink(context, run.parent.run_id), " step ", id(run.parent.step_id)] : null,
      ["Deadline", run.deadline ? [run.ended_at_ms === null ? until(run.deadline.at_ms, context.now) : when(run.deadline.at_ms), ` from ${DEADLINES[run.deadline.source] ?? run.deadline.source}`] : h("span.quiet", null, "none")],
      run.stop ? ["Stop", `${run.stop.reason === "cancelled" ? "cancel asked for" : "deadline recorded as reached"} at `, when(run.stop.requested_at_ms)] : null,
      run.children.length ? ["Invoked", h("ul.plain", null, run.children.map((child) => h("li", { key: child.run_id }, word(say.runWord({ ...child, stop: null })), " ", say.printable(child.function), " ", runLink(context, child.run_id), " in step ", id(child.step_id))))] : null),
    h("nav.tabs", { "aria-label": "Parts of the run" }, TABS.map(([name, title]) => link(context, context.with(route, { tab: name === "timeline" ? null : name, cursor: null, attempt: null }), title,
      { key: name, "aria-current": name === tab ? "page" : null, "data-still": true }))),
    h("div.tab", { key: tab }, PARTS[tab](context, state, route, run)),
  ];
}

const WHY_MOST = 300;

// As much as fits at the head; the whole of it is the output.
function whyEnded(run) {
  if (!run.failure) return null;
  const said = say.errorText(run.failure);
  return h("span.quiet.message", null, said.length > WHY_MOST ? `${said.slice(0, WHY_MOST)}…` : said);
}

// A recovery that reached less than everything always says why.
function whyPartial(run) {
  const skipped = run.unwind.targets.filter((target) => target.state === "skipped");
  if (!skipped.length) return null;
  const said = skipped.slice(0, 3).map((target) => `${say.printable(target.step_id)}: ${say.skipReason(target.reason, target.hidden_by)}`);
  return h("span.quiet", null, said.join("; "), skipped.length > 3 ? ` and ${skipped.length - 3} more` : null);
}

const DEADLINES = { function: "the function's timeout", policy: "the server's default", invoke: "the invoking step", parent: "the parent run" };

function banners(context, run) {
  const unknown = everyAttempt(run).filter((attempt) => attempt.state === "unknown");
  return [
    run.blocker ? blocked(run.blocker) : null,
    unknown.map((attempt) => notice("alert", `${attempt.phase === "compensation" ? "Undoing" : "Step"} ${say.printable(attempt.step_id)}, attempt ${attempt.attempt}, is Unknown`,
      `its effect was allowed to begin and nobody can establish what it did${attempt.unknown_at_ms === null ? "" : `; since ${say.soFar(context.now - attempt.unknown_at_ms)}`}${attempt.unknown_reason ? `: ${say.printable(attempt.unknown_reason)}` : ""}.`, null,
      h("p", null, resolveButton(context, attempt)))),
    run.attention === "unknown" && run.attention_run_id !== run.run_id ? notice("alert", "A run below this one needs you", null, null, h("p", null, runLink(context, run.attention_run_id))) : null,
    run.attention === "no_worker" ? notice("warn", "No worker can run it", `nobody connected has the function ${say.printable(run.function)} of ${say.printable(run.application)} and takes work; the work stays queued until one comes.`) : null,
  ];
}

function blocked(blocker) {
  return notice("warn", `Blocked at step ${say.printable(blocker.step_id)} (${say.printable(blocker.reason)})`, null, null,
    h("p.message", null, say.printable(blocker.message, true)),
    facts(blocker.first ? ["First used at", h("code", null, say.place(blocker.first))] : null, blocker.duplicate ? ["Used again at", h("code", null, say.place(blocker.duplicate))] : null,
      ["Seen", `${blocker.count === 1 ? "once" : `${blocker.count} times`}, first `, when(blocker.first_seen_at_ms), blocker.count > 1 ? [", last ", when(blocker.last_seen_at_ms)] : null,
        blocker.release_id ? [", by release ", id(blocker.release_id)] : null]),
    h("p", null, "Change the code and save it, or start a worker with the changed code; the run then goes on by itself. What has completed stays as it is."));
}

export const everyAttempt = (run) => [...run.steps.flatMap((step) => step.attempts), ...run.unwind.targets.flatMap((target) => target.attempts)];

// --- Timeline ---

export const showsTimeline = (route) => route.page === run && tabOf(route) === "timeline";

function timelineTab(context, state, route, run) {
  const history = resourceOf(state, historyKey(context, route).key)?.document?.items ?? NOTHING;
  const plan = timeline.layout(run, history, context.now, context.ui);
  if (!plan.rows.length) return h("p.empty", null, "The function has not reached a step yet.");
  return [
    controls(context, plan),
    picture(context, run, plan),
    stepTable(context, run),
    run.unwind.targets.length ? unwindTable(context, run) : null,
    run.status === "ended" && !run.unwind.targets.length ? h("p.quiet", null, RECOVERY_REASONS[run.recovery_reason] ?? "") : null,
  ];
}

function controls(context, plan) {
  const { fold, zoom, pan } = context.ui;
  const act = (text, name, values, isOff) => button(text, () => context.set(values), { class: "small", key: name, "aria-label": name, disabled: isOff });
  return h("div.controls", { role: "group", "aria-label": "Time axis" }, h("span.quiet", null, "Zoom"),
    act("+", "Zoom in", timeline.zoomed(context.ui, 1), zoom >= 64), act("−", "Zoom out", timeline.zoomed(context.ui, -1), zoom === 1),
    zoom === 1 ? null : [act("←", "Earlier", timeline.panned(context.ui, -1), pan === 0), act("→", "Later", timeline.panned(context.ui, 1), pan >= 1 - 1 / zoom),
      act("All", "Show all of it", timeline.zoomed(context.ui, 0), false), h("span.quiet", null, `×${zoom}`)],
    fold || timeline.gapsOf(plan.rows, plan.length).length ? h("label.check", { key: "fold" }, h("input", { type: "checkbox", checked: fold, onchange: (event) => context.set({ fold: event.target.checked }) }), "Fold long waits") : null);
}

const RECOVERY_REASONS = { succeeded: "Nothing was undone: the run succeeded.", empty_unwind: "Nothing was undone: no successful step could be reversed. Attempts that failed stay in the history." };
const ROW = 26;
const LANES_SEEN = 34;
const NUMBERS = 3;

// Only the rows in view are drawn, so that a run of a thousand steps costs what a short one does. Bars stand at their instants, and what of the
// axis is seen is the frame around them: as time goes on only the frame moves.
function picture(context, run, plan) {
  const height = plan.rows.length * ROW;
  const first = Math.max(0, Math.min(Math.floor(context.ui.scrolled / ROW) - 5, plan.rows.length - LANES_SEEN));
  const shown = plan.rows.slice(first, first + LANES_SEEN);
  const number = (value) => String(Number(value.toFixed(NUMBERS)));
  const percent = (place) => `${(((place - plan.from) / plan.shown) * 100).toFixed(NUMBERS)}%`;
  const marks = plan.gaps.length
    ? plan.gaps.map(([from, to]) => ({ at: from, place: (plan.at(from) + plan.at(to)) / 2, text: `⋯ ${say.span(to - from)}` })).filter(({ place }) => place >= plan.from && place <= plan.from + plan.shown)
    : timeline.ticks(plan.from, plan.from + plan.shown, context.narrow ? 3 : 6).map(({ at, text }) => ({ at, place: at, text }));
  const late = plan.from + plan.shown * 0.93;
  const gridKey = marks.map(({ place }) => number(place)).join(" ");
  const scaleKey = plan.gaps.length ? `${plan.total} ${plan.gaps.join(" ")}` : "";
  const frame = `${number(plan.from)} 0 ${number(plan.shown)} ${ROW}`;
  const bar = (one, index) => {
    const [y, thick] = one.kind === "pause" ? [ROW / 2 - 1, 2] : one.kind === "pass" ? [10, 6] : [6, 14];
    const from = plan.at(one.from);
    return h("rect", { key: String(index), class: `bar ${one.kind} tone-${one.tone}`, x: number(from), width: number(Math.max(0, plan.at(one.to) - from)), y: String(y), height: String(thick) }, h("title", null, one.title));
  };
  return h("div.picture", null,
    h("div.axis", { "aria-hidden": "true" }, h("div.scale", null, marks.map(({ at, place, text }) => h("span", { key: String(at), class: place > late ? "end" : place === plan.from ? "begin" : null, style: { left: percent(place) } }, text)))),
    h("div.lanes", { role: "img", tabindex: 0, "aria-label": timeline.describe(run, plan.rows), onscroll: (event) => context.scrolled(event.target.scrollTop) },
      h("div.lanes-height", { style: { height: `${height}px` } },
        h("div.lanes-shown", { style: { transform: `translateY(${first * ROW}px)` } },
          shown.map((row) => h(`div.lane.${row.kind}`, { key: row.key },
            h("span.lane-name", { title: row.label }, row.label),
            h("svg.bars", { width: "100%", height: String(ROW), viewBox: frame, preserveAspectRatio: "none", focusable: "false" },
              h("g", { key: "grid", memo: gridKey }, () => marks.map(({ at, place }) => h("line.grid", { key: String(at), x1: number(place), x2: number(place), y1: "0", y2: String(ROW) }))),
              h("g", { key: "bars", memo: row.isOver ? `${serial(row.segments)} ${scaleKey}` : undefined }, () => row.segments.map(bar))),
            h("span.lane-note", { title: row.note }, row.word ? word(row.word) : null, " ", h("span.quiet", null, row.note))))))));
}

const tookOf = (from, to) => (from === null || to === null ? "" : say.span(Math.max(0, to - from)));

function stepTable(context, run) {
  const rows = context.portion(run.steps.slice(0, context.ui.rows));
  const shown = Math.min(run.steps.length, context.ui.rows);
  return [
    table("Steps", [["Step", "step"], ["Kind", "short"], ["State", "fixed"], ["Took", "number"], ["Attempts", "number"], ["Outcome", "grow"]], rows.map((step) => ({
      key: step.step_id,
      props: { memo: isOver(step) ? serial(step) : undefined },
      cells: () => [id(step.step_id), `${step.kind.replace("_", " ")}${step.has_compensation ? ", can be undone" : ""}`, word(step.state === "pending" && step.attempts.length ? say.attemptWord(step.attempts.at(-1), context.now) : say.stepWord(step)),
        tookOf(step.declared_at_ms, step.completed_at_ms), step.attempts.length ? String(step.attempts.length) : "",
        [timeline.stepNote(step), step.state === "pending" && step.due_at_ms !== null ? [" until ", when(step.due_at_ms)] : null,
          step.child_run_id ? [" ", runLink(context, step.child_run_id)] : null, step.event_id ? [" ", eventLink(context, step.event_id)] : null,
          step.correlation && Object.keys(step.correlation).length ? h("span.quiet", null, ` ${Object.entries(step.correlation).map(([name, said]) => `${say.printable(name)}=${say.printable(said)}`).join(", ")}`) : null]],
    }))),
    run.steps.length > shown ? button(`Show ${Math.min(500, run.steps.length - shown)} more of ${run.steps.length} steps`, () => context.set({ rows: context.ui.rows + 500 })) : null,
  ];
}

function unwindTable(context, run) {
  return h("section", null, h("h2", null, "Undone, in this order"),
    table("What is undone", [["Order", "number"], ["Step", "step"], ["State", "fixed"], ["Took", "number"], ["Attempts", "number"], ["Why", "grow"]], context.portion(run.unwind.targets.slice(0, context.ui.rows)).map((target, index) => ({
      key: target.step_id,
      props: { memo: isOver(target) ? serial(target) : undefined },
      cells: () => [String(index + 1), id(target.step_id), word(target.state === "pending" && target.attempts.length ? say.attemptWord(target.attempts.at(-1), context.now) : say.targetWord(target)),
        tookOf(target.attempts.at(-1)?.authorized_at_ms ?? null, target.attempts.at(-1)?.settled_at_ms ?? null), String(target.attempts.length), timeline.targetNote(target)],
    }))));
}

// --- Attempts ---

function attemptsTab(context, state, route, run) {
  const list = everyAttempt(run);
  if (!list.length) return h("p.empty", null, "No attempt yet: the run has reached no step with a callback.");
  const earlier = Math.max(0, list.length - context.ui.rows);
  return [
    earlier ? button(`Show ${Math.min(500, earlier)} earlier of ${list.length} attempts`, () => context.set({ rows: context.ui.rows + 500 })) : null,
    table("Attempts", [["Step", "step"], ["Phase", "short"], ["Attempt", "number"], ["Generation", "number"], ["State", "fixed"], ["Took", "number"], ["Worker", "long"], ["Operation id", "step"], ["Note", "grow"], ["Logs", "short"]], context.portion(list.slice(earlier)).map((attempt) => ({
      key: attempt.attempt_id,
      props: { memo: attempt.settled_at_ms === null ? undefined : `${attempt.state} ${attempt.settled_at_ms}` },
      cells: () => [id(attempt.step_id), attempt.phase, String(attempt.attempt), String(attempt.attempt_generation), word(say.attemptWord(attempt, context.now)),
        tookOf(attempt.authorized_at_ms, attempt.settled_at_ms),
        attempt.worker ? [id(attempt.worker.instance_id), h("span.quiet", null, ` ${attempt.worker.transport}${attempt.worker.release_id ? `, release ${say.printable(attempt.worker.release_id)}` : ""}`)] : h("span.quiet", null, "none yet"),
        id(attempt.operation_id),
        [attempt.state === "unknown" ? resolveButton(context, attempt) : attempt.error ? say.errorText(attempt.error)
          : attempt.due_at_ms !== null && attempt.due_at_ms > context.now ? ["due ", until(attempt.due_at_ms, context.now)] : null],
        attempt.authorized_at_ms === null ? null : link(context, context.with(route, { tab: "logs", attempt: attempt.attempt_id }), "Logs", { "data-still": true, "aria-label": `Logs of ${say.printable(attempt.step_id)}, attempt ${attempt.attempt}` })],
    }))),
  ];
}

// --- History ---

// History only grows, and is told again only when it has.
const tellings = new WeakMap();

function told(items) {
  if (!tellings.has(items)) tellings.set(items, sentences(items));
  return tellings.get(items);
}

function historyTab(context, state, route) {
  const resource = resourceOf(state, historyKey(context, route).key);
  return looked(lookOf(state, resource), resource, {
    what: "history", empty: h("p", null, "Nothing has been recorded yet."),
    show: (document) => {
      const entries = told(document.items);
      const earlier = Math.max(0, entries.length - context.ui.rows);
      return [
        earlier ? button(`Show ${Math.min(500, earlier)} earlier of ${entries.length} transactions`, () => context.set({ rows: context.ui.rows + 500 })) : null,
        h("ol.history", null, context.portion(entries.slice(earlier)).map((entry) => h("li", { key: String(entry.position), memo: entry.position }, when(entry.at_ms, { short: true }), h("span.position", { title: "commit position" }, String(entry.position)),
          h("ul.plain", null, entry.lines.map((line) => h("li", null, line)))))),
      ];
    },
  });
}

// --- Input and output ---

function dataTab(context, state, route, run) {
  const input = run.input;
  const answered = run.steps.filter((step) => step.result || step.failure);
  return [
    h("section", null, h("h2", null, "Input"), input.kind === "event"
      ? [facts(["Event", say.printable(input.name)]), input.payload?.type === "bytes" ? payload(input.payload.value) : value(input.payload)]
      : input.value ? value(input.value) : block(JSON.stringify(input, null, 2), null)),
    h("section", null, h("h2", null, "Output"), run.failure ? failure(run.failure) : run.result ? value(run.result) : h("p.quiet", null, run.status === "ended" ? "none" : "none yet")),
    context.portion(answered.slice(0, context.ui.rows)).map((step) => h("details", { key: step.step_id }, h("summary", null, "Step ", id(step.step_id), " ", word(say.stepWord(step))),
      step.failure ? failure(step.failure) : value(step.result))),
    answered.length > context.ui.rows ? button(`Show ${Math.min(500, answered.length - context.ui.rows)} more of ${answered.length} outcomes`, () => context.set({ rows: context.ui.rows + 500 })) : null,
  ];
}

// --- Logs ---

// In the order in which the attempts began; a page of them at a time.
function logsTab(context, state, route) {
  const attempt = route.query.get("attempt");
  const resource = resourceOf(state, logsKey(context, route).key);
  if (resource?.error?.status === 404 && resource.document === null) return h("p.empty", null, "This server keeps no logs of callbacks.");
  return looked(lookOf(state, resource), resource, {
    what: "logs",
    empty: attempt || route.query.get("cursor") ? [h("p", null, attempt ? "This attempt has printed and logged nothing." : "There are no later logs."), link(context, context.with(route, { cursor: null, attempt: null }), "All logs of the run", { class: "button", "data-still": true })]
      : h("p", null, "The callbacks of this run have printed and logged nothing."),
    show: (document) => [
      document.items.map((log) => h("section", { key: log.attempt_id }, h("h2", null, id(log.step_id), ` ${log.phase === "compensation" ? "undone by " : ""}attempt ${log.attempt}`,
        log.attempt_generation > 1 ? h("span.quiet", null, ` generation ${log.attempt_generation}`) : null),
      log.lines.length > context.ui.lines ? button(`Show ${Math.min(500, log.lines.length - context.ui.lines)} earlier of ${log.lines.length} lines`, () => context.set({ lines: context.ui.lines + 500 })) : null,
      h("ol.logs", null, log.lines.slice(-context.ui.lines).map((line, index) => h("li", { key: `${index} ${line.at_ms}`, class: LOUD.has(line.level) ? "loud" : null },
        when(line.at_ms, { short: true }), h("span.level", null, say.printable(line.level)), h("span.text", null, say.printable(line.text, true))))))),
      attempt || route.query.get("cursor") || document.next_cursor ? h("nav.pager", { "aria-label": "Pages of logs" },
        attempt ? link(context, context.with(route, { attempt: null, cursor: null }), "All logs of the run", { class: "button", "data-still": true }) : null,
        route.query.get("cursor") ? link(context, context.with(route, { cursor: null }), "Oldest", { class: "button", "data-still": true }) : null,
        document.next_cursor ? link(context, context.with(route, { cursor: document.next_cursor }), "Newer", { class: "button", rel: "next", "data-still": true }) : null) : null,
    ],
  });
}

const LOUD = new Set(["error", "critical", "warning", "cut"]);

// --- Why ---

function whyTab(context, state, route, run) {
  const server = resourceOf(state, serverOf().key)?.document;
  const history = resourceOf(state, historyKey(context, route).key)?.document?.items ?? [];
  const declared = history.flatMap((entry) => entry.records).filter((record) => record.kind === "step_declared" && record.declaration.kind === "run").map((record) => record.declaration);
  return [
    h("section", null, h("h2", null, "Why this function"), run.event_id
      ? h("p", null, "Event ", eventLink(context, run.event_id), " matched the trigger ", id(run.trigger_id), " of application ", say.printable(run.application), ", by manifest generation ", id(run.manifest_generation),
        ", which routing generation ", id(run.routing_generation), " had active when the event was accepted. Later deployments do not change that.")
      : h("p", null, "Step ", id(run.parent?.step_id ?? ""), " of run ", run.parent ? runLink(context, run.parent.run_id) : null, " invoked it by its id.")),
    h("section", null, h("h2", null, "Why this deadline"), h("p", null, run.deadline
      ? `It stops at its deadline, which comes from ${DEADLINES[run.deadline.source] ?? run.deadline.source}. A step that completes at or after it is undone with the rest; a deadline never cuts undoing short.`
      : "It has no deadline: the function declares no timeout, and neither an invoking step nor the server sets one.")),
    h("section", null, h("h2", null, "When steps are tried again"), declared.length ? table("Retry policies", [["Step", "step"], ["After a failure that may be retried", "grow"], ["Attempt timeout", "number"], ["Undoing", "grow"]], context.portion(declared.slice(0, context.ui.rows)).map((one) => ({
      key: one.step_id, cells: [id(one.step_id), policy(one.retry), one.attempt_timeout_ms ? say.span(one.attempt_timeout_ms) : h("span.quiet", null, "none"), one.compensation ? policy(one.compensation.retry) : h("span.quiet", null, one.has_compensation ? policy(DEFAULT) : "nothing declared; the code that is live then decides")],
    }))) : h("p.quiet", null, "No step with a callback has been declared yet."),
      h("p.quiet", null, "What never began, or a discovery pass that was lost, is repeated without counting as a failure: at once, then after 1s doubling to 1m.")),
    h("section", null, h("h2", null, "When an attempt becomes Unknown"), server ? h("p", null, `A worker reports every ${say.span(server.heartbeat_ms)}. An effect whose worker is silent for the lease of ${say.span(server.lease_ms)} (and at least ${say.span(server.reconnect_grace_ms)} after the server started) becomes Unknown, and so does one that gives no answer 2s after its attempt timeout. Only a late answer or an operator ends that; it is never retried by itself.`) : null),
    h("section", null, h("h2", null, "Which worker gets the work"), h("p", null, "Any that is connected, not draining, has room, and has the function: the newest release first, releases before workers without one, spread over its instances. Runs are not bound to code; each pass, attempt and compensation goes to a worker that is eligible then."), everyAttempt(run).some((attempt) => attempt.worker)
      ? table("Workers of the attempts", [["Step", "step"], ["Attempt", "number"], ["Worker"], ["Release"], ["Authorized"]], everyAttempt(run).filter((attempt) => attempt.worker).slice(-50).map((attempt) => ({ key: attempt.attempt_id, cells: [id(attempt.step_id), String(attempt.attempt), id(attempt.worker.instance_id), attempt.worker.release_id ? id(attempt.worker.release_id) : h("span.quiet", null, "none"), when(attempt.authorized_at_ms)] }))) : null),
    h("section", null, h("h2", null, "What is undone"), h("p", null, run.unwind.targets.length ? "The run did not succeed, so the steps that had succeeded are undone in reverse completion order, one at a time, with the code that is live now." : run.outcome === "succeeded" ? "Nothing: a run that succeeds keeps its effects." : run.outcome ? "Nothing: no step had succeeded." : "If the run fails, is cancelled or times out, the steps that succeeded are undone in reverse completion order.")),
  ];
}

const DEFAULT = { max_attempts: 4, initial_ms: 1000, multiplier: 2, maximum_ms: 60_000, jitter: 0.1 };

function policy(retry) {
  if (!retry) return "";
  if (retry.max_attempts === 1) return "never";
  const isDefault = Object.entries(DEFAULT).every(([name, said]) => retry[name] === said);
  const grows = retry.multiplier === 1 ? "each time" : `then ×${retry.multiplier} up to ${say.span(retry.maximum_ms)}`;
  return `up to ${retry.max_attempts} attempts: after ${say.span(retry.initial_ms)}, ${grows}${retry.jitter ? `, spread by ${Math.round(retry.jitter * 100)} %` : ""}${isDefault ? " (the default)" : ""}`;
}

const PARTS = { timeline: timelineTab, attempts: attemptsTab, history: historyTab, data: dataTab, logs: logsTab, why: whyTab };
export const ROWS = ROWS_FIRST;
