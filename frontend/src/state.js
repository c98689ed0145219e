// What is being looked at, kept in the address so that a link leads to the same layer, step and view.

import { useEffect, useState } from "preact/hooks";

const KEYS = ["run", "layer", "step", "stat", "view", "sort"];

export function parsed(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const key of KEYS) if (given.has(key)) state[key] = given.get(key);
  return state;
}

export function linked(state) {
  const out = new URLSearchParams();
  for (const key of KEYS) if (state[key] !== undefined && state[key] !== null) out.set(key, state[key]);
  return `#${out}`;
}

/** [state, change]: change merges, writes the address and keeps the browser's history short. */
export function useAddress() {
  const [state, set] = useState(() => parsed(location.hash));
  useEffect(() => {
    const read = () => set(parsed(location.hash));
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  const change = (part, { push = false } = {}) => {
    const next = { ...parsed(location.hash), ...part };
    for (const key of Object.keys(next)) if (next[key] === null) delete next[key];
    const address = linked(next);
    if (push) location.hash = address;
    else history.replaceState(null, "", address);
    set(next);
  };
  return [state, change];
}
