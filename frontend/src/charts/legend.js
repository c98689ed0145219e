// The key of a map: the ramp with its numbers, and the marks for what is no level.

import { useEffect, useRef } from "preact/hooks";

import { table } from "../colour.js";
import { NONFINITE, NO_GRADIENT, valueAt, ZERO } from "../data.js";
import { html } from "../html.js";
import { number } from "../text.js";
import { LINES, paintSample } from "./paint.js";

function Sample({ byte, scheme, children }) {
  const canvas = useRef(null);
  useEffect(() => paintSample(canvas.current, byte, scheme), [scheme]);
  return html`<span><canvas class="swatch" ref=${canvas} width="4" height=${LINES} aria-hidden="true"></canvas>${children}</span>`;
}

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
    <canvas class="ramp" ref=${canvas} width="256" height="1" aria-hidden="true"></canvas>
    <span class="num" data-scale="high">${number(scale.high)}</span>
    <span class="soft">${kind}, middle ${number(valueAt(scale, 0.5))}</span>
    ${scale.log && html`<${Sample} byte=${ZERO} scheme=${scheme}>exactly zero</${Sample}>`}
    <${Sample} byte=${NO_GRADIENT} scheme=${scheme}>no gradient</${Sample}>
    <${Sample} byte=${NONFINITE} scheme=${scheme}>NaN or Inf</${Sample}>
    <span><i class="swatch empty"></i>not measured</span>
  </div>`;
}
