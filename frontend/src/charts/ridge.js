// Weight histograms over time: one ridge per moment, oldest at the back.

import { html } from "../html.js";
import { plain, shortened, whole } from "../text.js";

const [WIDTH, HEIGHT, STEP] = [260, 26, 15];

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** A power of two as people write it. */
const power = (exponent) => `2${[...String(exponent)].map((sign) => RAISED[sign]).join("")}`;

function outline(heights, y) {
  const pitch = WIDTH / heights.length;
  let path = `M0 ${y}`;
  heights.forEach((height, i) => {
    const top = (y - (height / 255) * HEIGHT).toFixed(1);
    path += `L${(i * pitch).toFixed(1)} ${top}L${((i + 1) * pitch).toFixed(1)} ${top}`;
  });
  return `${path}L${WIDTH} ${y}Z`;
}

export function Ridge({ ridge }) {
  const tall = HEIGHT + ridge.steps.length * STEP + 22;
  const [low, high] = [ridge.first_exponent, ridge.last_exponent];
  const told = ridge.steps
    .map((step, i) => {
      const bad = ridge.nonfinite[i] ? `, ${ridge.nonfinite[i]} non-finite` : "";
      return `step ${step}: ${ridge.counts[i]} weights, ${ridge.zeros[i]} exactly zero${bad}`;
    })
    .join("; ");
  return html`<figure class="ridge" role="img" aria-label=${`${plain(ridge.name)}, powers of two from 2^${low} to 2^${high}, both signs. ${told}`}>
    <figcaption title=${plain(ridge.name)}>${shortened(ridge.name, 34)}</figcaption>
    <svg viewBox=${`0 0 ${WIDTH + 56} ${tall}`} aria-hidden="true">
      ${ridge.steps.map((step, i) => {
        const y = HEIGHT + 4 + i * STEP;
        return html`<g key=${step}>
          <path d=${outline(ridge.heights[i], y)} class="hill" />
          <text x=${WIDTH + 5} y=${y} class="small">${whole(step)}${ridge.nonfinite[i] ? " !" : ""}</text>
        </g>`;
      })}
      <line x1=${WIDTH / 2} x2=${WIDTH / 2} y1="0" y2=${tall - 16} class="zero" />
      <text x="0" y=${tall - 4} class="small">${`−${power(high)}`}</text>
      <text x=${WIDTH / 2} y=${tall - 4} text-anchor="middle" class="small">${`|w| ≈ ${power(low)}`}</text>
      <text x=${WIDTH} y=${tall - 4} text-anchor="end" class="small">${power(high)}</text>
    </svg>
  </figure>`;
}
