// What was asked for under a key and has no answer yet. Kept for the tab until it has one, so that after a reload the same request goes out again
// under the same key.

const KEPT = "ryusen-intents";
const intents = read();

function read() {
  try {
    return new Map(Object.entries(JSON.parse(sessionStorage.getItem(KEPT) ?? "{}")));
  } catch {
    return new Map();
  }
}

export const owedIn = (slot) => intents.get(slot) ?? null;
export const allOwed = () => [...intents.values()];

// Keep an intent in its place; null where it has been answered.
export function owe(slot, intent) {
  if (intent) intents.set(slot, intent);
  else intents.delete(slot);
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(intents)));
  } catch {
    // No room in the tab for one so large: it is owed until the page is left.
  }
}
