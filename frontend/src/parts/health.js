// The top of the page: healthy or not, what is wrong, since when, where first, what to try.

import { html } from "../html.js";
import { many, plain, shortened, whole } from "../text.js";

const SIGNS = { healthy: "✓", notes: "i", sick: "✗", unknown: "?", info: "i", warning: "▲", critical: "✗" };

/** A verdict on a run, or the severity of one finding; an information is called a note. */
export function Badge({ state }) {
  return html`<span class=${`badge ${state}`}>${SIGNS[state]} ${state === "info" ? "note" : state}</span>`;
}

export function Health({ model, change }) {
  const { health, findings, run } = model;
  const worst = findings[0];
  return html`<section class=${`health ${health.state}`} id="health" aria-label="health">
    <p class="verdict"><${Badge} state=${health.state} /> <span id="health-line">${health.line}</span></p>
    ${worst &&
    health.state === "sick" &&
    html`<dl class="facts">
      <div><dt>what</dt><dd>${shortened(worst.message, 600)}</dd></div>
      <div><dt>since</dt><dd>step ${whole(worst.first_step)}</dd></div>
      <div><dt>where first</dt><dd>${
        worst.layers.length
          ? html`<button class="link" onClick=${() => change({ layer: worst.layers[0] })}>${shortened(worst.layers[0], 120)}</button>`
          : "the whole run"
      }</dd></div>
      ${worst.advice.length > 0 && html`<div><dt>try</dt><dd>${plain(worst.advice[0])}</dd></div>`}
    </dl>`}
    <p class="soft">
      ${many(run.steps, "step")}, ${many(run.layers, "layer")}, ${many(run.tensors, "tensor")}${run.elements ? `, ${many(run.elements, "parameter")}` : ""}
    </p>
  </section>`;
}
