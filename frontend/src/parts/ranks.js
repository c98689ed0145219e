// The ranks of a run of several processes: how far they are apart, who departs, who misses data.

import { useMemo } from "preact/hooks";

import { Line } from "../charts/line.js";
import { html } from "../html.js";
import { many, number, plain, whole } from "../text.js";

function Spread({ spread }) {
  if (!spread.length) return null;
  return html`<div class="wide"><table class="spread">
    <thead><tr><th>between the ranks</th><th>lowest</th><th>median</th><th>highest</th><th>farthest from the median</th></tr></thead>
    <tbody>
      ${spread.map(
        (item) => html`<tr key=${item.name}>
          <td>${item.title}</td>
          <td class="num">${number(item.lowest)} <span class="soft">rank ${item.lowest_rank}</span></td>
          <td class="num">${number(item.median)}</td>
          <td class="num">${number(item.highest)} <span class="soft">rank ${item.highest_rank}</span></td>
          <td>${item.farthest_rank === null ? "all equal" : `rank ${item.farthest_rank}`}</td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}

function Table({ ranks }) {
  const names = Object.keys(ranks.titles).filter((name) => ranks.rows.some((row) => row.values[name] !== null));
  return html`<div class="wide"><table class="each">
    <thead><tr><th>rank</th><th>steps</th>${names.map((name) => html`<th>${ranks.titles[name]}</th>`)}<th></th></tr></thead>
    <tbody>
      ${ranks.rows.map(
        (row) => html`<tr key=${row.rank} class=${row.notes.length ? "noted" : ""}>
          <td class="num">${row.rank}</td>
          <td class="num">${whole(row.steps)}</td>
          ${names.map((name) => html`<td class="num">${number(row.values[name])}</td>`)}
          <td>${row.notes.join(", ")}</td>
        </tr>`,
      )}
    </tbody>
  </table></div>`;
}

function Loss({ loss, window, theme }) {
  const lines = useMemo(
    () => [
      { label: "median rank", values: loss.median, width: 2 },
      { label: "highest", values: loss.highest, width: 1, dash: [3, 3] },
      { label: "lowest", values: loss.lowest, width: 1, dash: [3, 3] },
      ...(loss.farthest_rank === null
        ? []
        : [{ label: `rank ${loss.farthest_rank}`, values: loss.farthest, stroke: "--warn", width: 1.5 }]),
    ],
    [loss],
  );
  return html`<${Line} title="loss of the ranks" x=${loss.x} lines=${lines} bands=${[[2, 3]]} log=${false} range=${window} theme=${theme} height=${200} />`;
}

export function Ranks({ model, theme }) {
  const { ranks } = model;
  if (!ranks) return null;
  const noted = ranks.rows.filter((row) => row.notes.length);
  return html`<section id="ranks">
    <h2>Ranks</h2>
    <p class="soft">
      ${many(ranks.count, "rank")} wrote this run; everything else on this page is of all of them together.
      ${noted.length ? "" : " Each has every step."}
    </p>
    ${ranks.departures.map((line) => html`<p class="departure"><b>departs</b> ${plain(line)}</p>`)}
    <${Spread} spread=${ranks.spread} />
    ${ranks.loss && html`<${Loss} loss=${ranks.loss} window=${model.window} theme=${theme} />`}
    <${Table} ranks=${ranks} />
    ${ranks.count > ranks.rows.length &&
    html`<p class="soft">${ranks.rows.length} of ${ranks.count} are listed: those with a note first, then those farthest from the median loss.</p>`}
  </section>`;
}
