// The live page's line to the server: fetched models, and events that say when to fetch again.

import { useEffect, useState } from "preact/hooks";

import { opened } from "./data.js";

const RETRY = 2000;

async function fetched(address) {
  const answer = await fetch(address, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error ?? `the server answered ${answer.status}`);
  return body;
}

export const detailOf = (id) => async (first, last) =>
  opened(await fetched(`api/runs/${id}/view?first=${first}&last=${last}`));

/** Calls `again` now and whenever the stream says that something grew; says how the stream is. */
function useStream(address, again) {
  const [word, setWord] = useState("connecting");
  useEffect(() => {
    let source = null;
    let timer = null;
    const connect = () => {
      source = new EventSource(address);
      source.addEventListener("open", () => setWord("live"));
      source.addEventListener("grown", () => {
        setWord((now) => (now === "gone" ? "live" : now));
        again();
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

/** {model, error, word} of one run, kept fresh. Only one fetch runs at a time; the last wish counts. */
export function useRun(id) {
  const [model, setModel] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    setModel(null);
    setError(null);
  }, [id]);
  const fetching = { now: false, again: false };
  const load = async () => {
    if (fetching.now) {
      fetching.again = true;
      return;
    }
    fetching.now = true;
    try {
      setModel(await opened(await fetched(`api/runs/${id}/view`)));
      setError(null);
    } catch (problem) {
      setError(problem.message);
    }
    fetching.now = false;
    if (fetching.again) {
      fetching.again = false;
      load();
    }
  };
  const word = useStream(`api/runs/${id}/events`, load);
  return { model, error, word };
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
