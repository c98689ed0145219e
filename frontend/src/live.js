// The live page's line to the server: fetched models, and events that say when to fetch again.

import { useEffect, useState } from "preact/hooks";

import { opened } from "./data.js";

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
    const source = new EventSource(address);
    source.addEventListener("open", () => setWord("live"));
    source.addEventListener("error", () => setWord("reconnecting"));
    source.addEventListener("grown", again);
    source.addEventListener("complete", () => setWord("complete"));
    source.addEventListener("gone", () => setWord("gone"));
    return () => source.close();
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
