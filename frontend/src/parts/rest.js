// Activations, weight distributions, what it cost, what was not looked at, what happened.

import { Heatmap } from "../charts/heatmap.js";
import { Legend } from "../charts/legend.js";
import { Ridge } from "../charts/ridge.js";
import { html } from "../html.js";
import { many, plain, whole } from "../text.js";
import { useState } from "preact/hooks";

export function Activations({ model, state, change, query, scheme, theme }) {
  const names = model.mapNames.filter((name) => name.startsWith("act_") && model.maps.get(name).width);
  const [picked, pick] = useState(null);
  if (!names.length) return null;
  const map = model.maps.get(names.includes(picked) ? picked : names[0]);
  return html`<section id="activations">
    <h2>Activations</h2>
    <div class="bar" role="group" aria-label="statistic">
      ${names.map((name) => html`<button aria-pressed=${String(map.name === name)} onClick=${() => pick(name)}>${model.maps.get(name).title}</button>`)}
    </div>
    <${Legend} map=${map} scheme=${scheme} />
    <${Heatmap} model=${model} map=${map} state=${state} change=${change} query=${query} scheme=${scheme} theme=${theme} zoom=${null} setZoom=${() => {}} />
  </section>`;
}

const FIRST_RIDGES = 8;

function Ridges({ ridges }) {
  return html`<div class="ridges">${ridges.map((ridge) => html`<${Ridge} key=${ridge.name} ridge=${ridge} />`)}</div>`;
}

export function Weights({ model }) {
  if (!model.ridges.length) return null;
  return html`<section id="weights">
    <h2>Weight distributions</h2>
    <p class="soft">
      Histograms with one bin per power of two, negative weights on the left, newest in front; the worst layers first
      (${model.ridges.length} of ${model.tensors.length} tensors). A ! marks steps with NaN or Inf.
    </p>
    <${Ridges} ridges=${model.ridges.slice(0, FIRST_RIDGES)} />
    ${model.ridges.length > FIRST_RIDGES &&
    html`<details>
      <summary>${many(model.ridges.length - FIRST_RIDGES, "more tensor")}</summary>
      <${Ridges} ridges=${model.ridges.slice(FIRST_RIDGES)} />
    </details>`}
  </section>`;
}

function Told({ data }) {
  const rows = Object.entries(data).filter(([key]) => key !== "name");
  if (!rows.length) return null;
  const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  return html`<table class="told"><tbody>
    ${rows.map(([key, value]) => html`<tr><th>${plain(key)}</th><td>${plain(text(value))}</td></tr>`)}
  </tbody></table>`;
}

export function Recording({ model }) {
  return html`<section id="recording">
    <h2>Cost, and what was not looked at</h2>
    ${model.cost.map((line) => html`<p id="cost">${plain(line)}</p>`)}
    ${model.skipped.length > 0 &&
    html`<table class="skipped">
      <thead><tr><th>check that could not look</th><th>why</th></tr></thead>
      <tbody>${model.skipped.map((item) => html`<tr><td>${plain(item.check)}</td><td>${plain(item.reason)}</td></tr>`)}</tbody>
    </table>`}
    ${model.unseen.length > 0 && html`<ul>${model.unseen.map((line) => html`<li>${plain(line)}</li>`)}</ul>`}
    ${model.events.length > 0 &&
    html`<details>
      <summary>${model.events.length} ${model.events.length === 1 ? "event" : "events"}</summary>
      <table><tbody>
        ${model.events.map(
          (event) => html`<tr><td class="num">${whole(event.step)}</td><td>${plain(event.kind)}</td><td>${plain(event.text)}</td></tr>`,
        )}
      </tbody></table>
    </details>`}
    <details><summary>about the run</summary><${Told} data=${model.run.info} /></details>
  </section>`;
}
