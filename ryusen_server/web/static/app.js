// Wires the pages together: the address to what is wanted, requests and the stream to the projection, the projection to elements, keys to what
// they do. Decides nothing about runs.

import { Lost, Refused, ask, query, segment, token } from "./api.js";
import { Cancel, Help, Resolve, Send, Token } from "./dialogs.js";
import { h, patch } from "./dom.js";
import { allOwed, owedIn } from "./intents.js";
import { Live } from "./live.js";
import { EMPTY, due, looksTheSame, reduce, resourceOf, runOf } from "./model.js";
import * as pages from "./pages.js";
import { ROWS, everyAttempt, run, showsTimeline } from "./run.js";
import { link, word } from "./parts.js";
import { printable } from "./say.js";
import { panned, zoomed } from "./timeline.js";

const ROUTES = [[/^\/$/, pages.runs], [/^\/runs\/([^/]+)$/, run], [/^\/unknown$/, pages.unknown], [/^\/events$/, pages.events], [/^\/events\/([^/]+)$/, pages.event],
  [/^\/functions$/, pages.functions], [/^\/workers$/, pages.workers], [/^\/server$/, pages.server]];
const TABS = [["/", "Runs"], ["/unknown", "Unknown"], ["/events", "Events"], ["/workers", "Workers"], ["/functions", "Functions"], ["/server", "Server"]];
const SPACING_MS = 150;
const SPACING_MAX_MS = 3_000;
const SLOW = { server: 1_000, workers: 1_000, functions: 1_000 };
// What no change tells of, and is looked at again and again: when workers were last in contact, and what callbacks print while they run.
const LOOKED_AT_MS = { workers: 3_000, logs: 2_000 };
const TYPED_MS = 200;
const DRAWN_MS = 100;
const LINES = 60;
const NEIGHBOURS = 500;
const PORTION_FIRST = 20;
const PORTION = 40;
const FRESH_UI = { fold: false, zoom: 1, pan: 0, rows: ROWS, lines: LINES, scrolled: 0, portion: PORTION_FIRST };

const $ = (id) => document.getElementById(id);

let state = EMPTY;
let route = read();
let ui = { ...FRESH_UI };
let dialogs = [];
let sending = null;
let acknowledgements = [];
let drawing = false;
let isPart = false;
let drawnAt = 0;
let returning = null;
let typing = null;
let live = null;
const asked = new Map();

function read() {
  const url = new URL(location.href);
  for (const [pattern, page] of ROUTES) {
    const found = pattern.exec(url.pathname);
    const id = found?.[1] === undefined ? null : decoded(found[1]);
    if (found && id !== undefined) return { page, path: url.pathname, id, query: url.searchParams };
  }
  return { page: pages.missing, path: url.pathname, id: null, query: url.searchParams };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined;
  }
}

const workspace = () => route.query.get("workspace") || "default";

// What pages and dialogs may use.
const context = {
  get root() { return `/v1/workspaces/${segment(workspace())}`; },
  get now() { return Date.now(); },
  get narrow() { return innerWidth < 700; },
  get ui() { return ui; },
  get acknowledgements() { return acknowledgements; },
  // Attempts that a command was sent for whose answer never came.
  get owed() { return dialogs.length ? [] : allOwed().map((intent) => intent.attempt).filter(Boolean); },
  // The event that was sent and has no answer, unless it is still out.
  get owedEvent() { return dialogs.length || sending?.mutation.state === "sending" ? null : owedIn(`${context.root}/events`); },
  // As much of a long list as is drawn so far: the first screen at once, and more with each frame that follows.
  portion(list) {
    if (list.length <= ui.portion) return list;
    isPart = true;
    return list.slice(0, ui.portion);
  },
  drawDialogs: () => drawDialogs(),
  set(values) { ui = { ...ui, ...values }; draw(); },
  // A workspace other than the usual one stays in every address.
  href(path) {
    if (workspace() === "default") return path;
    const url = new URL(path, location.origin);
    url.searchParams.set("workspace", workspace());
    return url.pathname + url.search;
  },
  with(current, values) {
    const parameters = new URLSearchParams(current.query);
    for (const [name, value] of Object.entries(values)) {
      if (value === null || value === "") parameters.delete(name);
      else parameters.set(name, value);
    }
    return current.path + (parameters.size ? `?${parameters}` : "");
  },
  filter(name, value, { typed = false } = {}) {
    clearTimeout(typing);
    const apply = () => navigate(context.with(route, { [name]: value, cursor: null }), { replace: true, still: true });
    if (typed) typing = setTimeout(apply, TYPED_MS);
    else apply();
  },
  scrolled(top) {
    if (Math.abs(top - ui.scrolled) > 40) { ui = { ...ui, scrolled: top }; draw(); }
  },
  openResolve: (attempt) => open(new Resolve(context, attempt)),
  openCancel: (which) => open(new Cancel(context, which)),
  // One whose answer is out, or was lost, is the one that opens again.
  openSend() {
    if (!["sending", "lost"].includes(sending?.mutation.state)) sending = new Send(context);
    open(sending);
  },
  closed(dialog) {
    if (!dialogs.includes(dialog)) return;
    dialogs = dialogs.filter((one) => one !== dialog);
    drawDialogs();
    draw();
    (dialog.before?.isConnected ? dialog.before : $("main")).focus({ preventScroll: true });
  },
  acknowledged(attempt, answer) {
    acknowledgements = [{ key: `${attempt.attempt_id} ${attempt.attempt_generation}`, attempt, document: answer }, ...acknowledgements].slice(0, 20);
    announce(`Settled: ${answer.status}`);
  },
  changed() {
    for (const resource of Object.values(state.resources)) act({ type: "stale", key: resource.key });
  },
  async rediscover(which) {
    try {
      const answer = await ask(`${context.root}/runs/${segment(which.run_id)}/rediscover`, { method: "POST", body: "{}" });
      announce(answer.status === "replayed" ? "It was about to be asked already" : "The current code is asked again");
    } catch (error) {
      context.failed(error);
      announce(error instanceof Lost ? "The answer was lost; asking again is safe" : `Refused: ${error.message} [${error.code}]`);
    }
    context.changed();
  },
  async copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      announce(`Copied ${what}`);
    } catch {
      announce(`The browser does not let ${what} be copied`);
    }
  },
  // A refusal of a token that is used no more says nothing of the one that is.
  failed(error) {
    if (error instanceof Refused && error.status === 401 && error.token === token()) askForToken(token() === null ? null : error.message);
  },
};

function askForToken(why) {
  if (!dialogs.some((one) => one instanceof Token)) open(new Token(context, why));
}

function open(dialog) {
  dialog.before = document.activeElement;
  dialogs = [...dialogs, dialog];
  drawDialogs();
}

let fading = null;
function announce(text) {
  $("announce").textContent = text;
  $("announce").classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => { $("announce").classList.remove("shown"); }, 6_000);
}

// --- State ---

function act(action) {
  const before = state;
  state = reduce(state, action);
  if (state === before) return;
  pump();
  if (looksTheSame(before, state)) return;
  // What is waited for is shown with the next frame.
  if (action.type === "answered" && before.resources[action.key]?.document === null) draw();
  else drawSoon();
}

function want() {
  act({ type: "wanted", resources: unique([pages.serverOf(), ...route.page.wants(context, route, state)]) });
}

function unique(resources) {
  return [...new Map(resources.map((resource) => [resource.key, resource])).values()];
}

let pumping = null;

// Ask for what may have changed, each at its own pace: the longer an answer takes, the more seldom it is asked for.
function pump() {
  if (!live || document.hidden) return;
  let next = Infinity;
  const now = performance.now();
  for (const resource of due(state)) {
    const last = asked.get(resource.key);
    const wait = last === undefined ? 0 : last.at + last.spacing - now;
    if (wait <= 0) fetchOne(resource);
    else next = Math.min(next, wait);
  }
  clearTimeout(pumping);
  if (next < Infinity) pumping = setTimeout(pump, next);
}

async function fetchOne(resource) {
  const began = performance.now();
  const repeated = (asked.get(resource.key)?.failures ?? 0);
  asked.set(resource.key, { at: began, spacing: SPACING_MAX_MS, failures: repeated });
  act({ type: "asked", key: resource.key });
  const path = resource.kind === "history" ? `${resource.key}?limit=500${resource.document?.items.length ? `&after=${resource.document.items.at(-1).position}` : ""}` : resource.key;
  try {
    const answer = await ask(path);
    const more = resource.kind === "history" && answer.next_cursor !== null;
    asked.set(resource.key, { at: performance.now(), failures: 0, spacing: more ? 0 : Math.min(SPACING_MAX_MS, Math.max(SLOW[resource.kind] ?? SPACING_MS, 3 * (performance.now() - began))) });
    act({ type: "answered", key: resource.key, document: answer });
  } catch (error) {
    if (!(error instanceof Lost || error instanceof Refused)) throw error;
    asked.set(resource.key, { at: performance.now(), failures: repeated + 1, spacing: Math.min(SPACING_MAX_MS * (error instanceof Refused ? 5 : 1), 200 * 2 ** repeated) });
    act({ type: "failed", key: resource.key, error: { message: error.message, code: error.code ?? null, status: error.status ?? 0 } });
    context.failed(error);
  }
  if (asked.size > 200) for (const key of asked.keys()) if (!state.resources[key]) asked.delete(key);
  want();
}

// First a position, then snapshots, then the stream behind that position: whatever commits between them is told.
async function begin() {
  let position;
  for (;;) {
    try {
      position = (await ask(`${context.root}/runs?limit=1`)).position;
      break;
    } catch (error) {
      act({ type: "stream", state: error instanceof Refused ? "refused" : "reconnecting", why: error.message });
      context.failed(error);
      if (error instanceof Refused && error.status < 500) {
        const told = { message: error.message, code: error.code, status: error.status };
        for (const { key } of Object.values(state.resources)) act({ type: "failed", key, error: told });
        if (error.status === 403) askForToken(error.message);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
  live = new Live(`${context.root}/stream`, told);
  act({ type: "heartbeat", position });
  pump();
  await live.start(position);
}

let wasLive = false;

function told(name, document) {
  switch (name) {
    case "change":
      act({ type: "change", change: document });
      for (const dialog of dialogs) if (dialog instanceof Resolve && dialog.concerns(document) && dialog.mutation.state !== "done") dialog.refresh();
      break;
    case "stream":
      act({ type: "stream", state: document.state, why: document.why });
      if (document.state === "live") {
        if (wasLive) {
          // Behind a break, what no history keeps may be another: workers, leases.
          for (const one of asked.values()) one.spacing = 0;
          act({ type: "resync" });
        }
        wasLive = true;
      }
      break;
    case "notice": case "heartbeat": case "resync":
      act({ type: name, ...document });
      break;
  }
}

// --- Drawing ---

function draw() {
  if (drawing) return;
  drawing = true;
  if (document.hidden) setTimeout(drawNow, 200);
  else requestAnimationFrame(drawNow);
}

let later = null;

// What changes by itself is drawn ten times a second at most.
function drawSoon() {
  if (drawing || later !== null) return;
  const wait = drawnAt + DRAWN_MS - performance.now();
  if (wait <= 0) draw();
  else later = setTimeout(() => { later = null; draw(); }, wait);
}

function drawNow() {
  drawing = false;
  drawnAt = performance.now();
  isPart = false;
  patch($("header"), header());
  patch($("main"), h("div.page", { key: route.path }, route.page.view(context, state, route)));
  if (isPart) {
    ui = { ...ui, portion: ui.portion + PORTION };
    draw();
  }
  drawDialogs();
  // Whether everything that the page asked for is there, for whoever drives it.
  const waits = !live || Object.values(state.resources).some((resource) => resource.document === null && resource.error === null);
  $("main").dataset.state = waits ? "loading" : state.stream.state;
  // A page that is gone back to is as long as it was only once its answers are there.
  if (returning !== null) {
    comeBack();
    if (!waits) returning = null;
  }
  document.title = `${unknownCount() ? `? ${unknownCount()} · ` : ""}${route.id ? printable(route.id) : route.page.title} · Ryusen`;
}

// Dialogs are drawn at once, not with the next frame: a key that follows another meets what that one did.
function drawDialogs() {
  patch($("dialogs"), dialogs.map((dialog) => dialog.view()));
}

const unknownCount = () => resourceOf(state, "/v1/server")?.document?.counts.unknown ?? 0;
const STREAMS = { connecting: { glyph: "○", text: "Connecting", tone: "muted" }, live: { glyph: "●", text: "Live", tone: "good" },
  reconnecting: { glyph: "…", text: "Reconnecting", tone: "warn" }, refused: { glyph: "✗", text: "Refused", tone: "bad" } };

function header() {
  const counts = resourceOf(state, "/v1/server")?.document?.counts;
  const count = (path, glyph, text, number, tone) => link(context, path, [h("span.glyph", { "aria-hidden": "true" }, glyph), ` ${text} `, h("strong", null, counts ? String(number) : "–")],
    { class: `count tone-${counts && number ? tone : "muted"}`, key: text });
  return [
    h("div.bar", null,
      link(context, "/", "Ryusen", { class: "brand" }), h("span.address", null, location.host), workspace() === "default" ? null : h("span.address", null, printable(workspace())),
      h("span.live", { role: "status", title: state.stream.why }, word(STREAMS[state.stream.state] ?? STREAMS.connecting)),
      state.stream.state === "refused" ? h("button.small", { type: "button", onclick: () => askForToken(null) }, "Use a token") : null,
      h("span.counts", null, count("/workers", "●", "Workers", counts?.workers, "accent"), count("/unknown", "?", "Unknown", counts?.unknown, "alert"), count("/?status=definition_blocked", "■", "Blocked", counts?.blocked, "warn")),
      h("button.help.small", { type: "button", onclick: () => open(new Help(context)), "aria-label": "Keys" }, "?")),
    h("nav.main", { "aria-label": "Pages" }, TABS.map(([path, title], index) => link(context, path, [h("span.number", { "aria-hidden": "true" }, String(index + 1)), title],
      { key: path, "aria-current": route.path === path || (path === "/" && route.path.startsWith("/runs/")) || (path === "/events" && route.path.startsWith("/events/")) ? "page" : null }))),
  ];
}

// --- Addresses ---

// An entry of the browser's history holds where its page was scrolled to, the link it was left by, `behind`: how many entries before it the
// list lies that one came from, and `among`: the filters of the list of runs that a run was found in.
function navigate(href, { replace = false, still = false, by = document.activeElement } = {}) {
  const { behind, among } = history.state ?? {};
  if (replace) history.replaceState({ scroll: scrollY, behind, among }, "", context.href(href));
  else {
    history.replaceState({ ...history.state, scroll: scrollY, left: leftBy(by) }, "");
    history.pushState({ scroll: still ? scrollY : 0, behind: route.id === null ? 1 : behind && behind + 1, among: route.id === null ? amongOf(route) : among }, "", context.href(href));
  }
  arrive({ still });
}

const amongOf = (from) => (from.page === pages.runs ? pages.filtersOf(from) : undefined);

function leftBy(node) {
  const anchor = $("main").contains(node) ? node.closest("a[href]") ?? node.closest("tr")?.querySelector("[data-row]") : null;
  return anchor?.getAttribute("href") ?? null;
}

function arrive({ still = false, scroll = 0, left = null } = {}) {
  const before = { workspace: workspace(), path: route.path, tab: route.query.get("tab") };
  route = read();
  if (before.workspace !== workspace()) return location.reload();
  if (route.path !== before.path) ui = { ...FRESH_UI };
  else if (route.query.get("tab") !== before.tab) ui = { ...ui, rows: ROWS, lines: LINES, portion: PORTION_FIRST };
  // Where a place in it is gone back to, a list is drawn whole.
  if (scroll || left) ui = { ...ui, portion: Infinity };
  want();
  drawNow();
  for (const here of document.querySelectorAll("nav [aria-current]")) here.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (!still) {
    returning = scroll || left ? { scroll, left } : null;
    scrollTo(0, scroll);
    $("main").focus({ preventScroll: true });
    if (returning) comeBack();
  }
}

// To the place a page was left at, and the link it was left by: until it is there, or the reader goes elsewhere.
function comeBack() {
  const { scroll, left } = returning;
  const links = [...$("main").querySelectorAll("a[href]")].filter((each) => each.getAttribute("href") === left);
  if (left !== null && document.activeElement === $("main")) (links.find((each) => each.hasAttribute("data-row")) ?? links[0])?.focus({ preventScroll: true });
  scrollTo(0, scroll);
}

history.scrollRestoration = "manual";
for (const moved of ["wheel", "touchmove", "pointerdown", "keydown"]) addEventListener(moved, () => { returning = null; }, { passive: true, capture: true });
addEventListener("popstate", (event) => {
  for (const dialog of dialogs) if (!(dialog instanceof Token)) dialog.close();
  arrive({ scroll: event.state?.scroll ?? 0, left: event.state?.left ?? null });
});
addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (anchor.origin !== location.origin || anchor.hash || anchor.pathname.startsWith("/v1/")) return;
  event.preventDefault();
  for (const dialog of dialogs) dialog.close();
  navigate(anchor.pathname + anchor.search, { still: anchor.hasAttribute("data-still"), by: anchor });
});

// --- Keys ---

const rows = () => [...document.querySelectorAll("[data-row]")];

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.closest("tr")?.contains(document.activeElement));
  const next = step === "first" ? 0 : step === "last" ? all.length - 1 : at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + step));
  all[next].focus();
  all[next].scrollIntoView({ block: "nearest" });
}

async function nextUnknown() {
  try {
    const { items } = await ask(`${context.root}/attempts?state=unknown&limit=100`);
    if (!items.length) return announce("Nothing is Unknown");
    const at = items.findIndex((attempt) => attempt.run_id === route.id);
    navigate(`/runs/${encodeURIComponent(items[(at + 1) % items.length].run_id)}`);
  } catch (error) {
    context.failed(error);
    announce(error.message);
  }
}

// The run beside this one in the list that one came from. One that is no longer in it lies where it was created. A key that comes before the
// answer to the one before it goes on from there.
let going = Promise.resolve();
const neighbour = (step) => { going = going.then(() => beside(step)); };

async function beside(step) {
  if (route.page !== run) return;
  const id = route.id;
  try {
    const { items, next_cursor: more } = await ask(`${context.root}/runs${query({ ...history.state?.among, limit: NEIGHBOURS })}`);
    const at = items.findIndex((one) => one.run_id === id);
    const older = at >= 0 ? at + 1 : await olderThan(id, items);
    const isBeyond = older < 0 && more !== null;
    const behind = older < 0 ? items.length : older;
    const next = isBeyond ? undefined : items[step > 0 ? behind : (at >= 0 ? at : behind) - 1];
    if (next) navigate(`/runs/${encodeURIComponent(next.run_id)}`);
    else if (isBeyond || (step > 0 && more !== null)) announce(`Only the newest ${NEIGHBOURS} runs of a list can be gone through`);
    else announce(step < 0 ? "There is no newer run in this list" : "There is no older run in this list");
  } catch (error) {
    context.failed(error);
    announce(error.message);
  }
}

// Where in a list the runs begin that were created before one; -1 if nowhere.
async function olderThan(id, items) {
  const { created_at_ms: createdAt } = currentRun() ?? await ask(`${context.root}/runs/${segment(id)}`);
  return items.findIndex((one) => one.created_at_ms < createdAt);
}

function currentRun() {
  return route.page === run ? resourceOf(state, `${context.root}/runs/${segment(route.id)}`)?.document ?? null : null;
}

function resolveHere() {
  const within = document.activeElement?.closest("tr")?.querySelector("[data-resolve]") ?? document.querySelector("[data-resolve]");
  within?.click();
}

function axis(values) {
  if (showsTimeline(route)) context.set(values);
}

const KEYS = {
  "/": () => document.querySelector("[data-filter]")?.focus(),
  "?": () => open(new Help(context)),
  j: () => move(1), k: () => move(-1), g: () => move("first"), G: () => move("last"),
  u: nextUnknown,
  s: () => context.openSend(),
  R: resolveHere,
  X: () => { const shown = currentRun(); if (shown && shown.status !== "ended" && shown.status !== "compensating") open(new Cancel(context, shown)); },
  y: () => { const text = route.id ?? document.activeElement?.closest("tr")?.querySelector("[data-row]")?.textContent; if (text) context.copy(text, "the id"); },
  r: () => { for (const one of asked.values()) one.spacing = 0; act({ type: "resync" }); announce("Asked again"); },
  "+": () => axis(zoomed(ui, 1)), "=": () => axis(zoomed(ui, 1)), "-": () => axis(zoomed(ui, -1)), 0: () => axis(zoomed(ui, 0)),
  h: () => axis(panned(ui, -1)), l: () => axis(panned(ui, 1)), z: () => axis({ fold: !ui.fold }),
  "[": () => neighbour(-1), "]": () => neighbour(1),
  Escape: () => back(),
  ...Object.fromEntries(TABS.map(([path], index) => [String(index + 1), () => navigate(path)])),
};

// To the list one came from, as it was; to the list of all where the page was opened by its address.
function back() {
  if (route.id !== null && history.state?.behind) history.go(-history.state.behind);
  else if (route.path.startsWith("/runs/")) navigate("/");
  else if (route.path.startsWith("/events/")) navigate("/events");
  else if (route.query.size) navigate(route.path);
}

addEventListener("keydown", (event) => {
  if (dialogs.length) {
    dialogs.at(-1).keydown?.(event);
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const field = event.target.closest?.("input, textarea, select");
  if (field) {
    if (event.key === "Escape") {
      if (field.dataset.filter !== undefined && field.value) context.filter(field.name, "");
      field.blur();
      event.preventDefault();
    } else if (event.key === "Enter" && field.dataset.filter !== undefined) {
      field.blur();
      move("first");
    }
    return;
  }
  const does = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (does) {
    event.preventDefault();
    does();
  }
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { draw(); pump(); }
});
// Ages and countdowns move on by themselves.
setInterval(() => {
  if (document.hidden) return;
  if (state.stream.state === "live") lookAgain();
  draw();
}, 1_000);

function lookAgain() {
  for (const { key, kind, id } of Object.values(state.resources)) {
    const isOver = kind === "logs" && runOf(state, id)?.status === "ended";
    if (kind in LOOKED_AT_MS && !isOver && performance.now() - (asked.get(key)?.at ?? 0) >= LOOKED_AT_MS[kind]) act({ type: "stale", key });
  }
}

want();
drawNow();
begin();

// Seen by tests: how far this page has been told.
Object.defineProperty(globalThis, "ryusen", { value: Object.freeze({ get state() { return state; }, get live() { return live; }, everyAttempt }) });
