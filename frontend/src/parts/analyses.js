// What the analyses say: the network in sentences, layers to look at first, groups, pairs, weights.

import { MatrixChart } from "../charts/matrix.js";
import { html } from "../html.js";
import { labels, many, number, plain, shortened, whole } from "../text.js";
import { Badge } from "./health.js";

const FIRST_ROWS = 10;
const share = (part) => (part === null ? "–" : part > 0 && part < 0.005 ? "< 1 %" : `${Math.round(100 * part)} %`);
const signed = (value) => {
  const digits = value === null ? "–" : Math.abs(value).toFixed(1);
  return value === null || digits === "0.0" ? digits : `${value < 0 ? "−" : "+"}${digits}`;
};

const labelled = (rows) => {
  const names = [...new Set(rows.map((row) => row.name))];
  const short = labels(names, 40);
  return new Map(names.map((name, i) => [name, short[i]]));
};

/** The first rows of a table; the others folded under it, and how many are not listed at all. */
function Rows({ head, rows, row, count, word }) {
  const table = (part) => html`<table class="ranked">
    <thead><tr>${head.map((title) => html`<th>${title}</th>`)}</tr></thead>
    <tbody>${part.map(row)}</tbody>
  </table>`;
  const rest = rows.slice(FIRST_ROWS);
  return html`${table(rows.slice(0, FIRST_ROWS))}
    ${rest.length > 0 && html`<details><summary>${many(rest.length, `more ${word}`)}</summary>${table(rest)}</details>`}
    ${count > rows.length && html`<p class="soft">${whole(rows.length)} of ${many(count, word)} are listed, the worst first.</p>`}`;
}

const Verdict = ({ row }) => html`<td class="words"><${Badge} state=${row.state} /> ${[...row.reasons, ...(row.traits ?? [])].map(plain).join(", ")}</td>`;

/** A number with its heading, which a narrow screen shows beside it. */
const Number = ({ of, children }) => html`<td class="num" data-head=${of}>${children}</td>`;

function Targets({ found, change }) {
  const head = ["where", "verdict", "share", "decades", "steady", "what to try"];
  const tried = new Set();
  const names = labelled(found.targets);
  const row = (layer) => {
    const actions = layer.actions.join(" ");
    const again = actions !== "" && tried.has(actions);
    tried.add(actions);
    return html`<tr key=${layer.name}>
      <td>${layer.kind === "layer"
        ? html`<button class="link" title=${plain(layer.name)} onClick=${() => change({ layer: layer.name })}>${names.get(layer.name)}</button>`
        : names.get(layer.name)}</td>
      <${Verdict} row=${layer} />
      <${Number} of="share">${share(layer.share)}</${Number}>
      <${Number} of="decades">${signed(layer.decades)}</${Number}>
      <${Number} of="steady">${number(layer.stability)}</${Number}>
      <td class="words try">${again ? html`<span class="soft">the same</span>` : actions && shortened(actions, 400)}</td>
    </tr>`;
  };
  return html`<h3>What to look at first</h3>
    <p class="soft">
      Share is the layer's part of the squared norm of the whole gradient; decades say how far its typical gradient RMS
      lies from the median layer's; steady is 1 for a gradient that never jumps.
    </p>
    <${Rows} head=${head} rows=${found.targets} row=${row} count=${found.target_count} word="row" />`;
}

function Group({ bar, name }) {
  return html`<tr>
    <th scope="row" title=${plain(bar.name)}>${name} <span class="soft">${whole(bar.layers)}</span></th>
    <td class="track"><i style=${{ width: `${100 * (bar.share ?? 0)}%` }}></i></td>
    <td class="num">${share(bar.share)}</td>
    <td class="num">${signed(bar.decades)}</td>
  </tr>`;
}

function Groups({ levels }) {
  return html`<h3>Groups</h3>
    <p class="soft">
      The small number counts a group's layers. Bars are its share of the squared norm of the whole gradient; the number behind it says how many decades its
      typical gradient RMS lies from the median layer's.
    </p>
    ${levels.map((level) => {
      const names = labels(level.bars.map((bar) => bar.name), 22);
      return html`<table class="bars" key=${level.name}>
        <caption>
          by ${level.name}${level.explains === null ? "" : `: explains ${share(level.explains)} of the spread between layers`}
          ${level.count > level.bars.length ? ` (the ${level.bars.length} largest of ${whole(level.count)})` : ""}
        </caption>
        <tbody>${level.bars.map((bar, i) => html`<${Group} key=${bar.name} bar=${bar} name=${names[i]} />`)}</tbody>
      </table>`;
    })}`;
}

function Together({ matrix, why, scheme }) {
  return html`<h3>Layers that move together</h3>
    ${matrix
      ? html`<p class="soft">
            Pairs whose gradient norms rise and fall together (+), against each other (−), or one after the other's jumps (!);
            lighter is stronger, a dot is no more than chance. ${many(matrix.count, "pair")} more than chance${matrix.count > matrix.pairs.length ? ", the strongest are drawn" : ""}.
          </p>
          <${MatrixChart} matrix=${matrix} scheme=${scheme} />
          ${matrix.between.length > 0 && html`<ul class="troubles">${matrix.between.map((line) => html`<li>${shortened(line, 200)}</li>`)}</ul>`}`
      : html`<p class="soft">${plain(why)}</p>`}`;
}

function Weights({ found }) {
  const { outliers, entropy } = found.missing;
  const head = ["tensor", "verdict", "std", "zero", !outliers && "outliers", !entropy && "entropy"].filter(Boolean);
  const names = labelled(found.weights);
  const row = (tensor) => html`<tr key=${tensor.name}>
    <td title=${plain(tensor.name)}>${names.get(tensor.name)}</td>
    <${Verdict} row=${tensor} />
    <${Number} of="std">${number(tensor.std)}</${Number}>
    <${Number} of="zero">${share(tensor.zeros)}</${Number}>
    ${!outliers && html`<${Number} of="outliers">${tensor.outliers === null ? "–" : `${whole(tensor.outliers)} (by chance ${number(tensor.expected)})`}</${Number}>`}
    ${!entropy && html`<${Number} of="entropy">${share(tensor.entropy)}</${Number}>`}
  </tr>`;
  const reasons = new Map([[outliers, "Outliers"], [entropy, "Entropy"]].filter(([why]) => why));
  if (outliers && outliers === entropy) reasons.set(outliers, "Outliers and entropy");
  return html`<h3>Weights</h3>
    ${!entropy && html`<p class="soft">Entropy is given as a share of its largest possible value: low where a tensor's weights pile up in few places.</p>`}
    <${Rows} head=${head} rows=${found.weights} row=${row} count=${found.weight_count} word="tensor" />
    ${[...reasons].map(([why, what]) => html`<p class="soft">${what}: ${plain(why)}.</p>`)}`;
}

export function Analyses({ model, change, scheme }) {
  const found = model.analyses;
  if (!found) return null;
  const { missing } = found;
  return html`<section id="analyses">
    <h2>Analyses</h2>
    ${found.network.length > 0 &&
    html`<dl class="facts">
      ${found.network.map((fact) => html`<div key=${fact.name}><dt>${fact.name}</dt><dd>${shortened(fact.text, 400)}</dd></div>`)}
    </dl>`}
    ${found.targets.length > 0 && html`<${Targets} found=${found} change=${change} />`}
    ${found.levels.length > 0 && html`<${Groups} levels=${found.levels} />`}
    ${found.targets.length > 0 && html`<${Together} matrix=${found.matrix} why=${missing.matrix} scheme=${scheme} />`}
    ${found.weights.length > 0 && html`<${Weights} found=${found} />`}
    ${["gradients", "weights"].map((part) => missing[part] && html`<p class="soft">No analysis of the ${part}: ${plain(missing[part])}.</p>`)}
  </section>`;
}
