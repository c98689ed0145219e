// Loss and the user's other scalars, learning rates, and update ratios with their healthy band.

import { useMemo } from "preact/hooks";

import { curveLines, Line } from "../charts/line.js";
import { html } from "../html.js";
import { many, number, plain, whole } from "../text.js";

function Curve({ curve, theme, height, moving, range, stretch }) {
  const { lines, bands } = useMemo(() => curveLines(curve, plain(curve.title)), [curve]);
  return html`<${Line} title=${plain(curve.title)} x=${curve.x} lines=${lines} bands=${bands} log=${curve.log} theme=${theme} height=${height} moving=${moving} range=${range} stretch=${stretch} />`;
}

const MAIN = new Set(["loss", "val_loss"]);

export function Losses({ model, theme, moving }) {
  const main = model.scalars.filter((curve) => MAIN.has(curve.name));
  const others = model.scalars.filter((curve) => !MAIN.has(curve.name));
  const lost = model.nonfinite_loss;
  const stretch = useMemo(() => lost && [lost.first, lost.last], [lost]);
  if (!model.scalars.length && !model.learning_rates.length) return null;
  return html`<section id="loss">
    <h2>Loss and learning rate</h2>
    ${lost &&
    html`<p id="lost" class="lost">
      The loss was NaN or Inf on ${many(lost.count, "step")}: first on step ${whole(lost.first)}, last on step ${whole(lost.last)}.
    </p>`}
    <div class="charts">
      ${main.map((curve) => html`<${Curve} key=${curve.name} curve=${curve} theme=${theme} height=${220} moving=${moving} range=${model.window} stretch=${curve.name === "loss" ? stretch : null} />`)}
      ${model.learning_rates.map((curve) => html`<${Curve} key=${curve.name} curve=${curve} theme=${theme} height=${220} moving=${moving} range=${model.window} />`)}
    </div>
    ${others.length > 0 &&
    html`<details class="others">
      <summary>${others.length} more logged</summary>
      <div class="charts">${others.map((curve) => html`<${Curve} key=${curve.name} curve=${curve} theme=${theme} height=${130} range=${model.window} />`)}</div>
    </details>`}
  </section>`;
}

export function Updates({ model, theme }) {
  const found = model.updates;
  const lines = useMemo(
    () =>
      found && [
        { label: "median", values: found.median, width: 2 },
        { label: "90 %", values: found.ninetieth, width: 1 },
        { label: "10 %", values: found.tenth, width: 1 },
        { label: "highest", values: found.highest, width: 1, dash: [3, 3] },
        { label: "lowest", values: found.lowest, width: 1, dash: [3, 3] },
      ],
    [found],
  );
  if (!found) return null;
  return html`<section id="updates">
    <h2>Update ratios</h2>
    <p class="soft">
      How far one step moves a weight, relative to its size: over all weight tensors. The shaded band from
      ${` ${number(found.band[0])} to ${number(found.band[1])} `} is where trainings usually are.
    </p>
    <${Line} title="update / weight" x=${found.x} lines=${lines} bands=${[[2, 3]]} log=${true} band=${found.band} theme=${theme} height=${240} range=${model.window} />
  </section>`;
}
