// The key of a map: the ramp with its numbers, and the marks for what is no level.

import { useEffect, useRef } from "preact/hooks";

import { table } from "../colour.js";
import { valueAt } from "../data.js";
import { html } from "../html.js";
import { number } from "../text.js";

export function Legend({ map, scheme }) {
  const canvas = useRef(null);
  useEffect(() => {
    const context = canvas.current.getContext("2d");
    const image = context.createImageData(256, 1);
    table(scheme).forEach((rgb, i) => image.data.set([...rgb, 255], i * 4));
    context.putImageData(image, 0, 0);
  }, [scheme]);
  const { scale } = map;
  const kind = scale.log ? "log scale" : "linear";
  return html`<div class="legend" aria-label=${`${map.title}, ${kind}, ${number(scale.low)} to ${number(scale.high)}`}>
    <span class="num" data-scale="low">${number(scale.low)}</span>
    <canvas ref=${canvas} width="256" height="1" aria-hidden="true"></canvas>
    <span class="num" data-scale="high">${number(scale.high)}</span>
    <span class="soft">${kind}, middle ${number(valueAt(scale, 0.5))}</span>
    ${scale.log && html`<span><i class="swatch zero"></i>exactly zero</span>`}
    <span><i class="swatch none"></i>no gradient</span>
    <span><i class="swatch bad"></i>NaN or Inf</span>
    <span><i class="swatch empty"></i>not measured</span>
  </div>`;
}
