// What the flow network says at one moment: each node's byte, marks, and the width of each edge.

import { code, EMPTY, isLevel, level, NONFINITE, rowOf } from "./data.js";

const MARKS = [
  ["nonfinite", "!", "non-finite"],
  ["exploding-gradient", "▲", "exploding"],
  ["vanishing-gradient", "▽", "vanishing"],
  ["dead-units", "✕", "dead units"],
  ["no-gradient", "✕", "no gradient"],
];

/** Marks per layer index: [{sign, word, first, last}] from the findings and what follows from them. */
export function marksOf(model) {
  const out = new Map();
  for (const finding of model.findings.flatMap((head) => [head, ...head.consequences])) {
    const mark = MARKS.find(([check]) => check === finding.check);
    if (!mark || finding.severity === "info") continue;
    for (const name of finding.layers) {
      const index = model.byName.get(name);
      if (index === undefined) continue;
      if (!out.has(index)) out.set(index, []);
      out.get(index).push({ sign: mark[1], word: mark[2], first: finding.first_step, last: finding.last_step });
    }
  }
  return out;
}

/** The edges between two nodes over such as have no weights, the fewest of them; none where there is no way. */
function between({ nodes, edges }, from, to, weighted) {
  const came = new Map([[from, null]]);
  const queue = [from];
  for (const at of queue) {
    for (const [a, b] of edges)
      if (a === at && !came.has(b) && (b === to || !weighted(nodes[b]))) {
        came.set(b, a);
        queue.push(b);
      }
    if (came.has(to)) break;
  }
  const out = [];
  for (let at = to; came.get(at) !== null && came.has(at); at = came.get(at)) out.push(`${came.get(at)}-${at}`);
  return out;
}

/** The nodes of a path through the network, and its edges as "from-to". */
export function pathOf(model, path) {
  const at = new Map();
  model.flow.nodes.forEach((node, i) => node.layers.forEach((layer) => at.set(model.layers[layer].name, i)));
  const stops = [...new Set((path?.layers ?? []).map((name) => at.get(name)))];
  const weighted = (node) => node.layers.some((layer) => model.layers[layer].main !== null);
  const edges = stops.slice(1).flatMap((node, i) => between(model.flow, stops[i], node, weighted));
  return { nodes: new Set(stops), edges: new Set(edges) };
}

/** The highest byte among a node's layers at a column of the map. */
function byteOf(model, map, node, column) {
  let found = EMPTY;
  for (const layer of node.layers) found = Math.max(found, code(map, rowOf(model, map, layer), column));
  return found;
}

/** {bytes, flows, marks} of all nodes; a node without weights passes on what comes back to it. */
export function moment(model, map, marks, column, [first, last]) {
  const { nodes, edges } = model.flow;
  const bytes = nodes.map((node) => byteOf(model, map, node, column));
  const passed = bytes.slice();
  for (const [from, to] of [...edges].sort((a, b) => b[0] - a[0]))
    if (bytes[from] === EMPTY && from < to) passed[from] = Math.max(passed[from], passed[to]);
  const signs = nodes.map((node, i) => {
    const found = new Map();
    if (bytes[i] === NONFINITE) found.set("!", "non-finite");
    for (const layer of node.layers)
      for (const mark of marks.get(layer) ?? [])
        if (mark.first <= last && first <= mark.last) found.set(mark.sign, mark.word);
    return [...found];
  });
  const flows = edges.map(([from, to]) => {
    const both = [passed[from], passed[to]].filter(isLevel).map(level);
    return both.length ? Math.min(...both) : 0;
  });
  return { bytes, flows, signs };
}
