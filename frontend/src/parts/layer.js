// One layer, opened: its series from every map, and its tensors.

import { useMemo } from "preact/hooks";

import { Line } from "../charts/line.js";
import { rowOf, value } from "../data.js";
import { html } from "../html.js";
import { number, plain, shortened, whole } from "../text.js";

function seriesOf(model, index) {
  return model.mapNames
    .map((name) => model.maps.get(name))
    .map((map) => {
      const row = rowOf(model, map, index);
      if (row < 0) return null;
      const values = Array.from({ length: map.width }, (_, i) => value(map.scale, map.bytes[row * map.width + i]));
      if (!values.some((v) => v !== null)) return null;
      const x = map.columns.map((column) => model.heat.last[column]);
      return { map, x, lines: [{ label: map.title, values }] };
    })
    .filter(Boolean);
}

function Tensors({ model, layer }) {
  const map = model.maps.get("grad_rms");
  const latest = (tensor) => {
    if (!map) return null;
    for (let i = map.width - 1; i >= 0; i--) {
      const found = value(map.scale, map.bytes[tensor * map.width + i]);
      if (found !== null) return found;
    }
    return null;
  };
  return html`<table>
    <thead><tr><th>tensor</th><th>shape</th><th>type</th><th>elements</th><th>${map ? `${map.title}, last` : ""}</th></tr></thead>
    <tbody>
      ${layer.tensors.map((i) => {
        const tensor = model.tensors[i];
        return html`<tr>
          <td>${shortened(tensor.name, 160)}${tensor.frozen ? " (frozen)" : ""}</td>
          <td class="num">${tensor.shape.join(" × ")}</td>
          <td class="word">${shortened(tensor.dtype, 20)}</td>
          <td class="num">${whole(tensor.count)}</td>
          <td class="num">${number(latest(i))}</td>
        </tr>`;
      })}
    </tbody>
  </table>`;
}

export function LayerSection({ model, state, change, theme }) {
  const index = model.byName.get(state.layer);
  const found = useMemo(() => (index === undefined ? [] : seriesOf(model, index)), [model, index]);
  if (index === undefined) return null;
  const layer = model.layers[index];
  const step = state.step === undefined ? null : Number(state.step);
  return html`<section id="layer" class="layer">
    <h2>
      Layer ${shortened(layer.name, 160)}${" "}
      ${layer.module && html`<span class="soft">${plain(layer.module)}</span>`}${" "}
      <button class="close" aria-label="close the layer" onClick=${() => change({ layer: null })}>close</button>
    </h2>
    <${Tensors} model=${model} layer=${layer} />
    <div class="charts">
      ${found.map(
        ({ map, x, lines }) => html`<${Line} key=${map.name} title=${map.title} unit=${map.unit} x=${x} lines=${lines} log=${map.scale.log} moving=${step} range=${model.window} theme=${theme} height=${130} />`,
      )}
    </div>
  </section>`;
}
