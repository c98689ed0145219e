// Which rows a map shows: layers, or blocks of them that open; tensors of the layer that is open.

import { ordered, rowOf } from "../data.js";

export const GROUP_ABOVE = 40;
export const MOST_ROWS = 400;

function bytesOf(map, row) {
  return map.bytes.subarray(row * map.width, (row + 1) * map.width);
}

/** The highest byte of several rows: non-finite wins, then the highest level. */
function highest(map, rows) {
  const out = new Uint8Array(map.width);
  for (const row of rows) bytesOf(map, row).forEach((byte, i) => (out[i] = Math.max(out[i], byte)));
  return out;
}

function matches(name, query) {
  return name.toLowerCase().includes(query.toLowerCase());
}

/** Rows to draw: {key, kind, label, layerName, bytes, count, block, open}. */
export function shownRows(model, map, { sort, query, openBlocks, openLayer }) {
  const layers = ordered(model, sort).filter(
    (i) => rowOf(model, map, i) >= 0 && (!query || matches(model.layers[i].name, query)),
  );
  const out = [];
  const addLayer = (i, inside) => {
    const { name } = model.layers[i];
    out.push({ key: `l${i}`, kind: "layer", label: name, layerName: name, inside, bytes: bytesOf(map, rowOf(model, map, i)) });
    if (i === openLayer && !map.named)
      for (const tensor of model.layers[i].tensors)
        out.push({
          key: `t${tensor}`,
          kind: "tensor",
          label: model.tensors[tensor].name,
          layerName: name,
          inside: true,
          bytes: bytesOf(map, tensor),
        });
  };
  if (layers.length <= GROUP_ABOVE || query) layers.forEach((i) => addLayer(i, false));
  else {
    const blocks = new Map();
    for (const i of layers) {
      const { block } = model.layers[i];
      if (!blocks.has(block)) blocks.set(block, []);
      blocks.get(block).push(i);
    }
    for (const [block, members] of blocks) {
      if (members.length === 1) {
        addLayer(members[0], false);
        continue;
      }
      const open = openBlocks.has(block) || members.includes(openLayer);
      const rows = members.map((i) => rowOf(model, map, i));
      out.push({
        key: `b${block}`,
        kind: "block",
        label: block,
        count: members.length,
        block,
        open,
        bytes: highest(map, rows),
      });
      if (open) members.forEach((i) => addLayer(i, true));
    }
  }
  return { rows: out.slice(0, MOST_ROWS), left: Math.max(0, out.length - MOST_ROWS) };
}
