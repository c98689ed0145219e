// Each finding with its charts, the moment marked, the explanation folded under it; notes in one line.

import { useMemo, useState } from "preact/hooks";

import { curveLines, Line } from "../charts/line.js";
import { html } from "../html.js";
import { number, plain, shortened, whole } from "../text.js";
import { Badge } from "./health.js";

function Chart({ chart, theme, range, stretch }) {
  const { lines, bands } = useMemo(() => curveLines(chart, chart.title), [chart]);
  const title = chart.subject ? `${chart.title} of ${shortened(chart.subject, 80)}` : chart.title;
  return html`<${Line}
    title=${title}
    unit=${chart.unit}
    x=${chart.x}
    lines=${lines}
    bands=${bands}
    log=${chart.log}
    step=${chart.step}
    stretch=${stretch}
    limit=${chart.limit}
    range=${range}
    theme=${theme}
    height=${150}
  />`;
}

function Evidence({ items }) {
  if (!items.length) return null;
  return html`<table class="evidence">
    <thead><tr><th>measured</th><th>where</th><th>step</th><th>value</th><th>limit</th></tr></thead>
    <tbody>
      ${items.map(
        (item) => html`<tr>
          <td>${plain(item.stat)}</td>
          <td>${item.subject === null ? "run" : shortened(item.subject, 120)}</td>
          <td class="num">${whole(item.step)}</td>
          <td class="num">${number(item.measured)}</td>
          <td class="num">${number(item.limit)}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

function Where({ layers, change }) {
  if (!layers.length) return html`<span class="soft">the whole run</span>`;
  return html`${layers.slice(0, 6).map(
    (name) => html`<button class="link" onClick=${() => change({ layer: name })}>${shortened(name, 120)}</button> `,
  )}${layers.length > 6 ? `and ${layers.length - 6} more` : ""}`;
}

function Finding({ finding, ...rest }) {
  return html`<article class=${`finding ${finding.severity}`}>
    <h3><${Badge} state=${finding.severity} /> ${plain(finding.check)}</h3>
    <p class="message">${shortened(finding.message, 600)}</p>
    <${Body} finding=${finding} ...${rest} />
  </article>`;
}

/** A note in one line; the rest of it unfolds, and is only then drawn. */
function Note({ finding, ...rest }) {
  const [open, setOpen] = useState(false);
  return html`<details class="finding info note" onToggle=${(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
    <summary><${Badge} state="info" /> <b>${plain(finding.check)}</b> ${shortened(finding.message, 600)}</summary>
    ${open && html`<${Body} finding=${finding} ...${rest} />`}
  </details>`;
}

function Body({ finding, theme, change, range }) {
  const stretch = useMemo(() => [finding.first_step, finding.last_step], [finding]);
  return html`<p>
      steps <span class="num">${whole(finding.first_step)}</span> to <span class="num">${whole(finding.last_step)}</span>${" in "}
      <${Where} layers=${finding.layers} change=${change} />
    </p>
    ${finding.cause && html`<p><b>cause</b> ${plain(finding.cause)}</p>`}
    ${finding.advice.length > 0 && html`<ul class="advice">${finding.advice.map((line) => html`<li>${plain(line)}</li>`)}</ul>`}
    <div class="charts">${finding.charts.map((chart) => html`<${Chart} chart=${chart} theme=${theme} range=${range} stretch=${stretch} />`)}</div>
    <details>
      <summary>evidence and explanation</summary>
      <${Evidence} items=${finding.evidence} />
      ${finding.consequences.length > 0 &&
      html`<p><b>follows from it</b></p>
        <ul>${finding.consequences.map((c) => html`<li>${plain(c.check)}, step ${whole(c.first_step)}: ${plain(c.message)}</li>`)}</ul>`}
      ${finding.explanation && html`<p class="explanation">${finding.explanation}</p>`}
    </details>`;
}

export function Findings({ model, theme, change }) {
  if (!model.findings.length) return null;
  const shown = { theme, change, range: model.window };
  const [notes, findings] = [true, false].map((note) => model.findings.filter((f) => (f.severity === "info") === note));
  return html`<section id="findings">
    <h2>${findings.length ? "Findings" : "Notes"}</h2>
    ${model.timeline.length > 0 &&
    html`<p class="timeline"><b>in this order</b> ${model.timeline.slice(0, 8).map(plain).join(" → ")}</p>`}
    ${findings.map((finding, i) => html`<${Finding} key=${`${finding.check}${i}`} finding=${finding} ...${shown} />`)}
    ${notes.map((note, i) => html`<${Note} key=${`${note.check}${i}`} finding=${note} ...${shown} />`)}
  </section>`;
}
