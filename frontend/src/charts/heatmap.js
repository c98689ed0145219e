// The map of layers over steps: names as buttons, cells as a canvas; zoom by dragging, arrows move.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { EMPTY, NONFINITE, NO_GRADIENT, value } from "../data.js";
import { html } from "../html.js";
import { number, plain, shortened, steps } from "../text.js";
import { paint } from "./paint.js";
import { roving } from "./roving.js";
import { shownRows } from "./rows.js";
import { roundSteps } from "./ticks.js";

const ROW = 15;
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function worded(map, byte) {
  if (byte === EMPTY) return "not measured";
  if (byte === NO_GRADIENT) return "no gradient";
  if (byte === NONFINITE) return "NaN or Inf";
  const found = value(map.scale, byte);
  return found === 0 ? "0" : `≈ ${number(found)}`;
}

/** What a cell says: the text of the tooltip and of the status line. */
function cellText(model, map, row, column) {
  if (column < 0) return "not measured";
  const at = map.columns[column];
  const where = steps(model.heat.first[at], model.heat.last[at]);
  return `${plain(row.label)}, ${where}: ${worded(map, row.bytes[column])}`;
}

function Names({ rows, state, change, toggle }) {
  return html`<div class="names" role="group" aria-label="layers: arrow keys move" onKeyDown=${roving("button", "ArrowUp", "ArrowDown")}>
    ${rows.map(
      (row, i) => html`<button
        key=${row.key}
        tabindex=${i ? -1 : 0}
        class=${`name ${row.kind} ${row.inside ? "inside" : ""} ${state.layer === row.label && row.kind === "layer" ? "chosen" : ""}`}
        title=${plain(row.label)}
        aria-expanded=${row.kind === "block" ? String(row.open) : undefined}
        onClick=${() =>
          row.kind === "block"
            ? toggle(row.block)
            : change({ layer: state.layer === row.label ? null : rowLayer(row) }, { stay: true })}
      >${row.kind === "block" ? `${row.open ? "▾" : "▸"} ${shortened(row.label, 22)} (${row.count})` : shortened(row.label, 28)}</button>`,
    )}
  </div>`;
}

/** Half as many columns, around the cursor. */
function halved(first, last, at) {
  const half = Math.max(2, Math.floor((last - first + 1) / 2));
  const begin = Math.max(first, Math.min(last - half + 1, first + at - Math.floor(half / 2)));
  return [begin, begin + half - 1];
}

const rowLayer = (row) => row.layerName;

/** What pointer and keys do on the cells: move the cursor, drag a zoom, open a layer. */
function useCells({ canvas, rows, model, first, last, change, toggle, setZoom, pan }) {
  const [cursor, setCursor] = useState(null);
  const [dragged, setDragged] = useState(null);
  const begin = useRef(null);
  const width = last - first + 1;
  const inside = (x, y) => ({
    x: Math.max(0, Math.min(width - 1, x)),
    y: Math.max(0, Math.min(rows.length - 1, y)),
  });
  const place = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return inside(
      Math.floor(((event.clientX - box.left) / box.width) * width),
      Math.floor(((event.clientY - box.top) / box.height) * rows.length),
    );
  };
  const open = ({ x, y }) => {
    if (rows[y].kind === "block") toggle(rows[y].block);
    else change({ layer: rowLayer(rows[y]), step: model.heat.first[first + x] }, { stay: true });
  };
  const drop = () => {
    begin.current = null;
    setDragged(null);
  };
  const handlers = {
    onPointerMove: (event) => {
      const at = place(event);
      setCursor(at);
      if (begin.current !== null) setDragged([Math.min(begin.current, at.x), Math.max(begin.current, at.x)]);
    },
    onPointerDown: (event) => (begin.current = place(event).x),
    onPointerUp: (event) => {
      const from = begin.current;
      drop();
      if (from === null) return;
      const at = place(event);
      if (Math.abs(at.x - from) > 1) setZoom([first + Math.min(from, at.x), first + Math.max(from, at.x)]);
      else open(at);
    },
    onPointerLeave: () => {
      setCursor(null);
      drop();
    },
    onDblClick: () => setZoom(null),
    onWheel: (event) => {
      const sideways = event.deltaX || (event.shiftKey ? event.deltaY : 0);
      if (!pan || !sideways) return;
      event.preventDefault();
      pan(sideways / canvas.current.clientWidth);
    },
    onKeyDown: (event) => {
      const now = cursor ?? { x: 0, y: 0 };
      const move = MOVES[event.key];
      if (move) setCursor(inside(now.x + move[0], now.y + move[1]));
      else if (event.key === "Escape" || event.key === "-") setZoom(null);
      else if (event.key === "+") setZoom(halved(first, last, now.x));
      else if (pan && (event.key === "[" || event.key === "]")) pan(event.key === "[" ? -0.5 : 0.5);
      else if (event.key === "Enter" && cursor) open(cursor);
      else return;
      event.preventDefault();
      event.stopPropagation();
    },
  };
  return { cursor: cursor && rows[cursor.y] ? cursor : null, dragged, handlers };
}

/** What lies over the cells: the stretch being dragged, the cell pointed at, its tooltip. */
function Over({ cursor, dragged, width, height, text }) {
  const share = (x) => `${(x / width) * 100}%`;
  return html`
    ${dragged && html`<div class="dragged" style=${{ left: share(dragged[0]), width: share(dragged[1] - dragged[0] + 1) }}></div>`}
    ${cursor && html`<div class="crosshair" style=${{ left: share(cursor.x), width: share(1), top: `${cursor.y * ROW}px`, height: `${ROW}px` }}></div>`}
    ${cursor &&
    html`<div
      class=${`tip ${cursor.x > width / 2 ? "leftward" : ""} ${cursor.y > height / 2 ? "above" : ""}`}
      role="tooltip"
      style=${{ left: share(cursor.x + 0.5), top: `${cursor.y * ROW + (cursor.y > height / 2 ? -4 : ROW + 4)}px` }}
    >${shortened(text, 90)}</div>`}
  `;
}

/** Where a step stands between the left (0) and the right end (1) of the columns shown. */
function shareOf(heat, first, last, step) {
  let at = first;
  while (at < last && heat.first[at + 1] <= step) at += 1;
  const inside = (step - heat.first[at]) / (heat.last[at] - heat.first[at] + 1);
  return (at - first + Math.min(inside, 1)) / (last - first + 1);
}

/** The steps under the cells: both ends, and round ones between them where there is room. */
function Axis({ heat, first, last }) {
  const [begin, end] = [heat.first[first], heat.last[last]];
  const between = roundSteps(begin, end, 6)
    .map((step) => [step, shareOf(heat, first, last, step)])
    .filter(([step, at]) => step !== begin && step !== end && at > 0.14 && at < 0.9);
  return html`<div class="steps num">
    <span data-step="first">${`step ${begin}`}</span>
    ${between.map(([step, at]) => html`<span class="tick" key=${step} style=${{ left: `${at * 100}%` }}>${step}</span>`)}
    <span data-step="last">${end}</span>
  </div>`;
}

export function Heatmap({ model, map, state, change, query, scheme, theme, zoom, setZoom, pan }) {
  const [openBlocks, setOpen] = useState(() => new Set());
  const canvas = useRef(null);
  const painted = useRef(null);
  const openLayer = model.byName.get(state.layer) ?? -1;
  const sort = state.sort ?? "depth";
  const { rows, left } = useMemo(
    () => shownRows(model, map, { sort, query, openBlocks, openLayer }),
    [model, map, sort, query, openBlocks, openLayer],
  );
  const [first, last] = zoom ?? [0, model.heat.first.length - 1];
  const toggle = (block) => {
    const next = new Set(openBlocks);
    if (!next.delete(block)) next.add(block);
    setOpen(next);
  };
  const { cursor, dragged, handlers } = useCells({ canvas, rows, model, first, last, change, toggle, setZoom, pan });
  useEffect(() => {
    if (rows.length) painted.current = paint(canvas.current, rows, map, model.heat, first, last, scheme);
  }, [rows, map, first, last, scheme, theme]);
  if (!rows.length) return html`<p class="soft">no layer of this map matches</p>`;
  const text = cursor ? cellText(model, map, rows[cursor.y], painted.current?.[cursor.x] ?? -1) : "";
  const range = steps(model.heat.first[first], model.heat.last[last]);
  return html`<div class="heatmap">
    <div class="scroll">
      <${Names} rows=${rows} state=${state} change=${change} toggle=${toggle} />
      <div class="cells" style=${{ height: `${rows.length * ROW}px` }}>
        <canvas
          ref=${canvas}
          tabindex="0"
          role="img"
          aria-label=${`${map.title}: ${rows.length} rows over ${range}. Arrow keys move, Enter opens, + zooms in, [ and ] move along, Escape shows all steps.`}
          ...${handlers}
        ></canvas>
        <${Over} cursor=${cursor} dragged=${dragged} width=${last - first + 1} height=${rows.length} text=${text} />
      </div>
      <div class="corner"></div>
      <${Axis} heat=${model.heat} first=${first} last=${last} />
    </div>
    <output class="status" aria-live="polite">${text}</output>
    ${left > 0 && html`<p class="soft">${left} more rows are not drawn: search for a layer, or open fewer blocks.</p>`}
  </div>`;
}
