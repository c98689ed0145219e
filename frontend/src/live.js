// The live page's line to the server: fetched models, and events that say when to fetch again.

import { useEffect, useRef, useState } from "preact/hooks";

import { opened } from "./data.js";

const RETRY = 2000;

async function told(answer) {
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error ?? `the server answered ${answer.status}`);
  return body;
}

async function fetched(address) {
  return told(await fetch(address, { headers: { accept: "application/json" } }));
}

/** One map of a stretch of steps (of all, where `zoom` is null), beside what the model has anyway. */
export const detailOf = (id) => async (model, zoom, name) => {
  const steps = zoom ? `first=${zoom[0]}&last=${zoom[1]}&` : "";
  const part = await fetched(`api/runs/${id}/view?${steps}maps=${encodeURIComponent(name)}&sections=window,heat`);
  return opened({ ...model, ...part });
};

/** Calls `again` whenever the stream says that something grew, `tell` with how far a long work is;
 * says how the stream is. */
function useStream(address, again, tell = () => {}) {
  const [word, setWord] = useState("connecting");
  useEffect(() => {
    let source = null;
    let timer = null;
    const fresh = () => {
      tell(null);
      again();
    };
    const connect = () => {
      source = new EventSource(address);
      source.addEventListener("open", () => setWord("live"));
      source.addEventListener("progress", (event) => tell(JSON.parse(event.data)));
      source.addEventListener("ready", fresh);
      source.addEventListener("grown", () => {
        setWord((now) => (now === "gone" ? "live" : now));
        fresh();
      });
      source.addEventListener("complete", () => setWord("complete"));
      source.addEventListener("gone", () => setWord("gone"));
      source.addEventListener("error", () => {
        // The browser tries again by itself, unless it was refused: a restarted server knows us only
        // once its new link was opened.
        const refused = source.readyState === EventSource.CLOSED;
        setWord(refused ? "not connected: open the link the server prints" : "reconnecting");
        if (refused) timer = setTimeout(connect, RETRY);
      });
    };
    connect();
    return () => {
      source.close();
      clearTimeout(timer);
    };
  }, [address]);
  return word;
}

/** The newest model as it came, and its tag; asks only for what changed since. */
async function newest(id, kept) {
  const headers = { accept: "application/json" };
  if (kept.tag) headers["if-none-match"] = kept.tag;
  const answer = await fetch(`api/runs/${id}/view?soon=1&changes=1`, { headers, cache: "no-store" });
  if (answer.status === 304) return kept;
  const body = await told(answer);
  const since = answer.headers.get("x-gradwatch-since");
  const changed = since !== null && kept.tag === `"${since}"`;
  return { tag: answer.headers.get("etag"), raw: changed ? { ...kept.raw, ...body } : body };
}

/** {model, error, word, progress} of one run, kept fresh. Only one fetch runs at a time; the last wish
 * counts. */
export function useRun(id) {
  const [model, setModel] = useState(null);
  const [error, setError] = useState(null);
  const [progress, setProgress] = useState(null);
  const kept = useRef({ tag: null, raw: null });
  const fetching = useRef({ now: false, again: false });
  const load = async () => {
    if (fetching.current.now) {
      fetching.current.again = true;
      return;
    }
    fetching.current.now = true;
    try {
      const found = await newest(id, kept.current);
      if (found !== kept.current) setModel(await opened(found.raw));
      kept.current = found;
      setError(null);
    } catch (problem) {
      setError(problem.message);
    }
    fetching.current.now = false;
    if (fetching.current.again) {
      fetching.current.again = false;
      load();
    }
  };
  useEffect(() => {
    load();
  }, [id]);
  const word = useStream(`api/runs/${id}/events`, load, setProgress);
  return { model, error, word, progress };
}

/** {runs, error, word} of the whole folder. */
export function useRuns() {
  const [runs, setRuns] = useState(null);
  const [error, setError] = useState(null);
  const load = () =>
    fetched("api/runs").then(
      (body) => {
        setRuns(body.runs);
        setError(null);
      },
      (problem) => setError(problem.message),
    );
  const word = useStream("api/events", load);
  return { runs, error, word };
}
