// The one projection of every page: (state, action) -> state. Pure: no element, no request, no clock.
//
// A resource is what a page asks for: an answer of the API and whether it may have changed since it was asked for. A change that comes while
// an answer is on its way makes that answer stale again, so that nothing between a snapshot and the stream is missed. Runs are kept once for
// all lists and details, at the newest position anybody has told of them, so that two places never disagree about a run.

export const EMPTY = Object.freeze({ resources: {}, runs: {}, position: 0, stream: Object.freeze({ state: "connecting", why: "" }) });

export function reduce(state, action) {
  switch (action.type) {
    case "wanted": return wanted(state, action.resources);
    case "asked": return change(state, action.key, (resource) => ({ ...resource, asking: true, stale: false, askedAt: state.position }));
    case "answered": return answered(state, action);
    case "failed": return change(state, action.key, (resource) => ({ ...resource, asking: false, stale: resource.stale || passes(action.error), error: action.error }));
    case "change": return touched({ ...state, position: Math.max(state.position, action.change.position) },
      (resource) => concerns(resource, action.change));
    case "notice": return touched(state, (resource) => OF_WORKERS.has(resource.kind) || (resource.kind === "run" && resource.document?.status !== "ended"));
    case "heartbeat": return action.position > state.position ? { ...state, position: action.position } : state;
    case "resync": return touched(begunAnew(state, action.position ?? state.position), () => true);
    case "stale": return touched(state, (resource) => resource.key === action.key);
    case "stream": return { ...state, stream: { state: action.state, why: action.why ?? "" } };
    default: throw new Error(`no such action: ${action.type}`);
  }
}

// What depends on who is connected now.
const OF_WORKERS = new Set(["workers", "functions", "server", "runs", "releases"]);

// Whether asking again may be answered otherwise though nothing has changed: a refusal for what was asked would only come again.
const passes = ({ status }) => !(status >= 400 && status < 500) || status === 408 || status === 429;

function change(state, key, how) {
  const resource = state.resources[key];
  return resource ? { ...state, resources: { ...state.resources, [key]: how(resource) } } : state;
}

// Where the server stands behind what has been told, it is over another database: nothing that was known is newer than what it says.
function begunAnew(state, position) {
  if (position >= state.position) return { ...state, position };
  return { ...state, position, runs: Object.fromEntries(Object.entries(state.runs).map(([runId, known]) => [runId, { ...known, at: 0 }])) };
}

// What is wanted no more is forgotten, and with it the runs that only it told of: memory does not grow with time.
function wanted(state, list) {
  const resources = {};
  for (const one of list) {
    resources[one.key] = state.resources[one.key] ?? { ...one, document: null, error: null, stale: true, asking: false, askedAt: 0 };
  }
  return keepRuns({ ...state, resources });
}

function answered(state, { key, document }) {
  const before = state.resources[key];
  if (!before) return state;
  const merged = before.kind === "history" ? grown(before.document, document) : before.kind === "run" ? settledKept(before.document, document) : document;
  const more = before.kind === "history" && document.next_cursor !== null;
  const after = change(state, key, (resource) => ({ ...resource, asking: false, error: null, stale: resource.stale || more, document: merged }));
  return told(after, before, document);
}

// History only grows, so only what is new is asked for.
function grown(before, page) {
  const items = before ? before.items : [];
  const last = items.at(-1)?.position ?? -1;
  const fresh = page.items.filter((item) => item.position > last);
  return fresh.length || !before ? { items: items.concat(fresh), complete: page.next_cursor === null } : { ...before, complete: page.next_cursor === null };
}

// What is over never changes, so it stays the very object it was: whatever was made of it can be used again.
function settledKept(before, document) {
  if (!before) return document;
  const kept = (ones, others) => ones.map((one, index) => (isSame(others[index], one) ? others[index] : one));
  return { ...document, steps: kept(document.steps, before.steps), unwind: { ...document.unwind, targets: kept(document.unwind.targets, before.unwind.targets) } };
}

const isSame = (one, other) => one !== undefined && isOver(one) && isOver(other) && one.step_id === other.step_id && one.state === other.state &&
  one.completed_at_ms === other.completed_at_ms && one.attempts.length === other.attempts.length;

// A step or a target of the unwind that no later change is about.
export const isOver = (one) => one.state !== "pending" && one.completed_at_ms !== null && one.attempts.every((attempt) => attempt.settled_at_ms !== null);

function told(state, resource, document) {
  const summaries = resource.kind === "runs" ? document.items : resource.kind === "run" ? [document] : [];
  if (!summaries.length) return keepRuns(state);
  const at = Math.max(document.position ?? 0, resource.askedAt);
  const runs = { ...state.runs };
  for (const summary of summaries) {
    const known = runs[summary.run_id];
    if (known && known.at > at) continue;
    // The same facts stay the same object, and nobody draws them again.
    const text = resource.kind === "runs" ? JSON.stringify(summary) : null;
    runs[summary.run_id] = { at, text, run: text !== null && known?.text === text ? known.run : summary };
  }
  return keepRuns({ ...state, runs });
}

function keepRuns(state) {
  const runs = {};
  for (const resource of Object.values(state.resources)) {
    if (resource.kind === "run" && state.runs[resource.id]) runs[resource.id] = state.runs[resource.id];
    if (resource.kind === "runs" && resource.document) {
      for (const { run_id } of resource.document.items) if (state.runs[run_id]) runs[run_id] = state.runs[run_id];
    }
  }
  return { ...state, runs };
}

// Whether a page shows the same of both: how far a position has come, and what is being asked for, is not shown.
export function looksTheSame(one, other) {
  if (one === other) return true;
  const keys = Object.keys(one.resources);
  if (one.stream !== other.stream || keys.length !== Object.keys(other.resources).length) return false;
  return keys.every((key) => one.resources[key].document === other.resources[key]?.document && one.resources[key].error === other.resources[key]?.error) &&
    Object.keys(other.runs).every((runId) => one.runs[runId]?.run === other.runs[runId].run);
}

function touched(state, concerned) {
  let resources = state.resources;
  for (const [key, resource] of Object.entries(state.resources)) {
    if (!resource.stale && !resource.fixed && concerned(resource)) {
      if (resources === state.resources) resources = { ...resources };
      resources[key] = { ...resource, stale: true };
    }
  }
  return resources === state.resources ? state : { ...state, resources };
}

function concerns(resource, { records }) {
  switch (resource.kind) {
    case "runs": return records.some((record) => record.run_id !== undefined || record.kind.startsWith("event") || record.runs !== undefined);
    case "run": return records.some((record) => isAbout(record, resource) || resource.document?.children.some((child) => child.run_id === record.run_id) ||
      (resource.document?.attention_run_id ?? null) === (record.run_id ?? undefined));
    case "history": case "logs": return records.some((record) => isAbout(record, resource));
    case "attempts": return records.some((record) => record.kind.startsWith("attempt") || record.kind === "stop_requested" || record.kind === "outcome_decided");
    case "attempt": return records.some((record) => record.run_id === resource.run);
    case "events": return records.some((record) => record.event_id !== undefined || record.events !== undefined);
    case "event": return records.some((record) => record.event_id === resource.id);
    case "functions": case "applications": case "routing": return records.some((record) => record.manifest_generation !== undefined && record.run_id === undefined);
    case "releases": return records.some((record) => record.release_id !== undefined);
    case "workers": return records.some((record) => record.kind.startsWith("attempt_"));
    case "server": return true;
    default: return false;
  }
}

const isAbout = (record, resource) => record.run_id === resource.id || record.parent_run_id === resource.id;

// --- What pages read ---

export const resourceOf = (state, key) => state.resources[key];

// The run as it is known best: its detail is never behind its line in a list.
export function runOf(state, runId) {
  return state.runs[runId]?.run ?? null;
}

export function runsOf(state, key) {
  const document = state.resources[key]?.document;
  return document ? document.items.map((summary) => state.runs[summary.run_id]?.run ?? summary) : [];
}

// loading, error (nothing to show), empty, stale (what is shown is old), ready.
export function lookOf(state, resource) {
  if (!resource || (resource.document === null && resource.error === null)) return "loading";
  if (resource.document === null) return "error";
  if (resource.error !== null || state.stream.state === "reconnecting") return "stale";
  return resource.document.items?.length === 0 ? "empty" : "ready";
}

// Those that may have changed and are not on their way already.
export const due = (state) => Object.values(state.resources).filter((resource) => resource.stale && !resource.asking);
