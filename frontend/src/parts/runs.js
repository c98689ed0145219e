// The list of runs: health, size, a small loss curve, a link.

import { useState } from "preact/hooks";

import { html } from "../html.js";
import { useRuns } from "../live.js";
import { linked } from "../state.js";
import { number, plain, shortened, whole } from "../text.js";
import { Badge } from "./health.js";

const [WIDTH, HEIGHT] = [140, 28];

function Spark({ values }) {
  const known = values.filter((v) => v !== null);
  if (known.length < 2) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const points = values
    .map((v, i) => (v === null ? null : `${((i / (values.length - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 2 - ((v - low) / (high - low || 1)) * (HEIGHT - 4)).toFixed(1)}`))
    .filter(Boolean);
  return html`<svg class="spark" width=${WIDTH} height=${HEIGHT} role="img" aria-label=${`loss from ${number(known[0])} to ${number(known.at(-1))}`}>
    <polyline points=${points.join(" ")} />
  </svg>`;
}

export function Runs({ theme, setTheme }) {
  const { runs, error, word } = useRuns();
  const [query, setQuery] = useState("");
  const shown = (runs ?? []).filter((run) => run.name.toLowerCase().includes(query.toLowerCase()));
  return html`<div class="page">
    <header>
      <div class="title"><h1>gradwatch</h1><span class=${`live ${word}`}>${word}</span></div>
      <div class="search"><input type="search" aria-label="search runs" placeholder="search runs" value=${query} onInput=${(event) => setQuery(event.target.value)} /></div>
      <div class="tools"><button onClick=${() => setTheme(theme === "dark" ? "light" : "dark")} aria-label="dark or light">${theme === "dark" ? "☀" : "☾"}</button></div>
    </header>
    <main>
      ${error && html`<p class="problem" role="alert">${error}</p>`}
      ${runs === null && !error && html`<p class="soft" role="status">opening the runs …</p>`}
      ${runs !== null && !runs.length && html`<p class="soft">No run is here yet: this list fills by itself.</p>`}
      ${shown.length > 0 &&
      html`<section><table class="runs">
        <thead><tr><th>run</th><th>health</th><th>steps</th><th>loss</th><th>state</th></tr></thead>
        <tbody>
          ${shown.map(
            (run) => html`<tr key=${run.id}>
              <td><a href=${linked({ run: run.id })}>${shortened(run.name, 80)}</a></td>
              <td><${Badge} state=${run.state} /> <span class="soft">${plain(run.line)}</span></td>
              <td class="num count">${whole(run.steps)}</td>
              <td><${Spark} values=${run.loss} /> <span class="num">${number(run.last_loss)}</span></td>
              <td class="soft">${run.complete ? "complete" : "growing"}</td>
            </tr>`,
          )}
        </tbody>
      </table></section>`}
    </main>
  </div>`;
}
