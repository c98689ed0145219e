// Which layers move together: a square of pairs, above its diagonal; arrow keys read them.

import { useState } from "preact/hooks";

import { colour, inkOn } from "../colour.js";
import { html } from "../html.js";
import { labels, number, plain, shortened } from "../text.js";
import { roving } from "./roving.js";

const SIGNS = { cooperative: "+", competitive: "−", disruptive: "!", neutral: "·" };

function Pair({ pair, strength, kind, scheme, first, say }) {
  const text = `${pair}: ${kind}, ${number(strength)}`;
  return html`<button
    class="pair"
    tabindex=${first ? 0 : -1}
    aria-label=${text}
    title=${text}
    style=${{ background: colour(scheme, strength), color: inkOn(scheme, strength) }}
    onFocus=${() => say(text)}
    onPointerEnter=${() => say(text)}
  >${SIGNS[kind] ?? "?"}</button>`;
}

export function MatrixChart({ matrix, scheme }) {
  const [said, say] = useState("");
  const at = new Map(matrix.pairs.map(([row, column, ...rest], i) => [`${row} ${column}`, [i, ...rest]]));
  const short = labels(matrix.names, 18);
  return html`<div class="matrix">
    <table onKeyDown=${roving(".pair", "ArrowLeft", "ArrowRight")} aria-label="pairs of layers: arrow keys move">
      <thead><tr><td></td>${matrix.names.map((name, i) => html`<th scope="col" title=${plain(name)}>${i + 1}</th>`)}</tr></thead>
      <tbody>
        ${matrix.names.map(
          (name, row) => html`<tr key=${name}>
            <th scope="row" title=${plain(name)}>${row + 1} ${short[row]}</th>
            ${matrix.names.map((other, column) => {
              const pair = at.get(`${row} ${column}`);
              if (!pair) return html`<td class=${column > row ? "unmeasured" : ""}></td>`;
              const both = `${shortened(name, 60)} and ${shortened(other, 60)}`;
              return html`<td><${Pair} pair=${both} first=${pair[0] === 0} strength=${pair[1]} kind=${pair[2]} scheme=${scheme} say=${say} /></td>`;
            })}
          </tr>`,
        )}
      </tbody>
    </table>
    <output class="status" aria-live="polite">${said}</output>
  </div>`;
}
