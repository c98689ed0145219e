// The flow network as SVG, at one moment of the run.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { bad, colour, css, inkFor, inkOn } from "../colour.js";
import { isLevel, level, NONFINITE, NO_GRADIENT, value, ZERO } from "../data.js";
import { moment, pathOf } from "../flow.js";
import { html } from "../html.js";
import { number, plain } from "../text.js";
import { fitted } from "./measure.js";
import { curve, NODE, placed } from "./place.js";
import { roving } from "./roving.js";

function fill(byte, scheme) {
  if (isLevel(byte)) return [colour(scheme, level(byte)), inkOn(scheme, level(byte))];
  if (byte === NONFINITE) return [css(bad(scheme)), inkFor(bad(scheme))];
  if (byte === NO_GRADIENT) return ["#808080", "#fff"];
  if (byte === ZERO) return ["#46465a", "#fff"];
  return ["var(--panel-2)", "var(--ink)"];
}

function worded(map, byte) {
  if (byte === NONFINITE) return "NaN or Inf";
  if (byte === NO_GRADIENT) return "no gradient";
  const found = value(map.scale, byte);
  return found === null ? "no weights of its own" : number(found);
}

function Box({ node, box, byte, signs, map, scheme, chosen, critical, open, first, point }) {
  const [paint, ink] = fill(byte, scheme);
  const words = signs.map(([, word]) => word).join(", ");
  const told = `${plain(node.name)}${node.kind ? ` (${plain(node.kind)})` : ""}: ${worded(map, byte)}${words ? `, ${words}` : ""}`;
  return html`<g
    class=${`node ${chosen ? "chosen" : ""} ${critical ? "critical" : ""}`}
    tabindex=${first ? 0 : -1}
    role="button"
    aria-label=${told}
    transform=${`translate(${box.x} ${box.y})`}
    onClick=${open}
    onKeyDown=${(event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open();
    }}
    onPointerEnter=${() => point(true)}
    onPointerLeave=${() => point(false)}
    onFocus=${() => point(true)}
    onBlur=${() => point(false)}
  >
    <title>${told}</title>
    <rect width=${NODE.width} height=${NODE.height} rx="6" style=${{ fill: paint }} stroke-dasharray=${node.opaque ? "4 3" : undefined} />
    <text x="7" y="14" style=${{ fill: ink }}>${fitted(node.name, NODE.width - 14)}</text>
    <text x="7" y="27" class="small" style=${{ fill: ink }}>${isLevel(byte) || byte >= NO_GRADIENT ? worded(map, byte) : fitted(node.kind, NODE.width - 14)}</text>
    ${signs.length > 0 && html`<text class="mark" x=${NODE.width - 5} y="29" text-anchor="end" style=${{ fill: ink }}>${signs.map(([sign]) => sign).join("")}</text>`}
  </g>`;
}

export function FlowChart({ model, map, marks, column, shown, scheme, state, change, path }) {
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const [pointed, setPointed] = useState(null);
  const plan = useMemo(() => placed(model.flow, width), [model.flow, width]);
  const now = moment(model, map, marks, column, shown);
  const { nodes, edges } = model.flow;
  const critical = useMemo(() => pathOf(model, path), [model, path]);
  const over = (i) => Number(critical.edges.has(edges[i].join("-")));
  const drawn = edges.map((_, i) => i).sort((a, b) => over(a) - over(b)); // the path lies over the rest
  const open = (node) => () => {
    if (node.layers.length) change({ layer: model.layers[node.layers[0]].name }, { stay: true });
  };
  const chosen = (node) => node.layers.some((i) => model.layers[i].name === state.layer);
  return html`<div class="flow" ref=${box}>
    <svg width=${plan.width} height=${plan.height} viewBox=${`0 0 ${plan.width} ${plan.height}`} role="group" aria-label="flow of the gradient through the layers: arrow keys move" onKeyDown=${roving(".node", "ArrowLeft", "ArrowRight")}>
      ${drawn.map((i) => {
        const [from, to] = edges[i];
        const skips = nodes[to].rank - nodes[from].rank > 1;
        return html`<path
          key=${i}
          class=${`edge ${skips ? "skip" : ""} ${plan.boxes[from].line === plan.boxes[to].line ? "" : "far"} ${over(i) ? "critical" : ""} ${pointed === from || pointed === to ? "pointed" : ""}`}
          d=${curve(plan.boxes[from], plan.boxes[to], skips)}
          stroke-width=${Math.max(0.8 + (skips ? 3 : 6) * now.flows[i], 3 * over(i)).toFixed(1)}
        />`;
      })}
      ${nodes.map(
        (node, i) => html`<${Box}
          key=${i}
          node=${node}
          box=${plan.boxes[i]}
          byte=${now.bytes[i]}
          signs=${now.signs[i]}
          map=${map}
          scheme=${scheme}
          chosen=${chosen(node)}
          critical=${critical.nodes.has(i)}
          open=${open(node)}
          first=${i === 0}
          point=${(on) => setPointed(on ? i : null)}
        />`,
      )}
    </svg>
  </div>`;
}
