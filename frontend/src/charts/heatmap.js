// The map of layers over steps: names as buttons, cells as a canvas; zoom by dragging, arrows move.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { EMPTY, NONFINITE, NO_GRADIENT, value } from "../data.js";
import { html } from "../html.js";
import { number, plain, shortened, steps } from "../text.js";
import { paint } from "./paint.js";
import { shownRows } from "./rows.js";

const ROW = 15;

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
  return html`<div class="names">
    ${rows.map(
      (row) => html`<button
        key=${row.key}
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

const rowLayer = (row) => row.layerName ?? row.label;

export function Heatmap({ model, map, state, change, query, scheme, theme, zoom, setZoom }) {
  const [openBlocks, setOpen] = useState(() => new Set());
  const [cursor, setCursor] = useState(null);
  const canvas = useRef(null);
  const painted = useRef(null);
  const drag = useRef(null);
  const [dragged, setDragged] = useState(null);
  const openLayer = model.byName.get(state.layer) ?? -1;
  const sort = state.sort ?? "depth";
  const { rows, left } = useMemo(
    () => shownRows(model, map, { sort, query, openBlocks, openLayer }),
    [model, map, sort, query, openBlocks, openLayer],
  );
  for (const row of rows) if (row.kind === "tensor") row.layerName = model.layers[row.layer].name;
  const all = model.heat.first.length;
  const [first, last] = zoom ?? [0, all - 1];
  useEffect(() => {
    painted.current = paint(canvas.current, rows, map, model.heat, first, last, scheme);
  }, [rows, map, first, last, scheme, theme]);

  const toggle = (block) => {
    const next = new Set(openBlocks);
    if (!next.delete(block)) next.add(block);
    setOpen(next);
  };
  const place = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * (last - first + 1));
    const y = Math.floor(((event.clientY - box.top) / box.height) * rows.length);
    return [Math.max(0, Math.min(last - first, x)), Math.max(0, Math.min(rows.length - 1, y))];
  };
  const move = (event) => {
    const [x, y] = place(event);
    setCursor({ x, y });
    if (drag.current !== null) setDragged([Math.min(drag.current, x), Math.max(drag.current, x)]);
  };
  const up = (event) => {
    const begin = drag.current;
    drag.current = null;
    setDragged(null);
    if (begin === null) return;
    const [x, y] = place(event);
    if (Math.abs(x - begin) > 1) setZoom([first + Math.min(begin, x), first + Math.max(begin, x)]);
    else if (rows[y].kind !== "block") change({ layer: rowLayer(rows[y]), step: model.heat.first[first + x] }, { stay: true });
  };
  const key = (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape" || event.key === "-") setZoom(null);
    else if (event.key === "+") setZoom(halved(first, last, cursor?.x ?? 0));
    else if (event.key === "Enter" && cursor && rows[cursor.y].kind !== "block")
      change({ layer: rowLayer(rows[cursor.y]), step: model.heat.first[first + cursor.x] }, { stay: true });
    else if (moves[event.key]) {
      const [dx, dy] = moves[event.key];
      const now = cursor ?? { x: 0, y: 0 };
      setCursor({
        x: Math.max(0, Math.min(last - first, now.x + dx)),
        y: Math.max(0, Math.min(rows.length - 1, now.y + dy)),
      });
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const seen = cursor && rows[cursor.y] ? cursor : null;
  const text = seen ? cellText(model, map, rows[seen.y], painted.current?.[seen.x] ?? -1) : "";
  const share = (x) => `${(x / (last - first + 1)) * 100}%`;
  if (!rows.length) return html`<p class="soft">no layer of this map matches</p>`;
  return html`<div class="heatmap">
    <div class="scroll">
      <${Names} rows=${rows} state=${state} change=${change} toggle=${toggle} />
      <div class="cells" style=${{ height: `${rows.length * ROW}px` }}>
        <canvas
          ref=${canvas}
          tabindex="0"
          role="img"
          aria-label=${`${map.title}: ${rows.length} rows over ${steps(model.heat.first[first], model.heat.last[last])}. Arrow keys move, Enter opens, + zooms in, Escape shows all steps.`}
          onPointerMove=${move}
          onPointerDown=${(event) => (drag.current = place(event)[0])}
          onPointerUp=${up}
          onPointerLeave=${() => {
            setCursor(null);
            drag.current = null;
            setDragged(null);
          }}
          onDblClick=${() => setZoom(null)}
          onKeyDown=${key}
        ></canvas>
        ${dragged && html`<div class="dragged" style=${{ left: share(dragged[0]), width: share(dragged[1] - dragged[0] + 1) }}></div>`}
        ${seen && html`<div class="crosshair" style=${{ left: share(seen.x), width: share(1), top: `${seen.y * ROW}px`, height: `${ROW}px` }}></div>`}
        ${seen &&
        html`<div
          class=${`tip ${seen.x > (last - first) / 2 ? "leftward" : ""}`}
          role="tooltip"
          style=${{ left: share(seen.x + 0.5), top: `${seen.y * ROW + ROW + 4}px` }}
        >${shortened(text, 90)}</div>`}
      </div>
    </div>
    <div class="steps">
      <span class="num" data-step="first">${`step ${model.heat.first[first]}`}</span>
      <output class="status" aria-live="polite">${text}</output>
      <span class="num" data-step="last">${model.heat.last[last]}</span>
    </div>
    ${left > 0 && html`<p class="soft">${left} more rows are not drawn: search for a layer, or open fewer blocks.</p>`}
  </div>`;
}
