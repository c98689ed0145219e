// The view model in the page: maps inflated, rows looked up. Nothing here draws.

export const EMPTY = 0;
export const ZERO = 1;
export const LOWEST = 2;
export const LEVELS = 251;
export const NO_GRADIENT = 254;
export const NONFINITE = 255;

async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The model inside a report's element, which large ones hold deflated. */
export async function embedded(element) {
  const text = element.dataset.packed ? new TextDecoder().decode(await inflated(element.textContent)) : element.textContent;
  return opened(JSON.parse(text));
}

/** The model with every map's cells as bytes and with the tables the views look things up in. */
export async function opened(model) {
  const maps = new Map();
  await Promise.all(
    Object.entries(model.heat.maps).map(async ([name, map]) => {
      const named = Array.isArray(map.rows) ? new Map(map.rows.map((row, i) => [row, i])) : null;
      const bytes = await inflated(map.cells);
      maps.set(name, { ...map, name, named, bytes, width: map.columns.length });
    }),
  );
  const order = Object.keys(model.heat.maps);
  const byName = new Map(model.layers.map((layer, index) => [layer.name, index]));
  return { ...model, maps, mapNames: order, byName };
}

/** Row of a map that stands for a layer, or -1. */
export function rowOf(model, map, layer) {
  const entry = model.layers[layer];
  if (!map.named) return entry.main === null ? -1 : entry.main;
  return map.named.has(entry.name) ? map.named.get(entry.name) : -1;
}

export function code(map, row, column) {
  return row < 0 ? EMPTY : map.bytes[row * map.width + column];
}

/** 0 … 1 of a byte that is a level. */
export function level(byte) {
  return (byte - LOWEST) / LEVELS;
}

export function valueAt(scale, at) {
  if (!scale.log) return scale.low + at * (scale.high - scale.low);
  return Math.exp(Math.log(scale.low) + at * Math.log(scale.high / scale.low));
}

/** The number a byte stands for; null where there is none. */
export function value(scale, byte) {
  if (byte === EMPTY || byte >= NO_GRADIENT) return null;
  if (scale.log && byte === ZERO) return 0;
  return valueAt(scale, level(byte));
}

export function isLevel(byte) {
  return byte >= LOWEST && byte < NO_GRADIENT;
}

/** The map's column (an index into map.columns) that shows a step: the last one begun by then. */
export function columnOf(model, map, step) {
  let found = 0;
  for (let i = 0; i < map.width; i++) {
    if (model.heat.first[map.columns[i]] <= step) found = i;
    else break;
  }
  return found;
}

/** First and last step of one of the map's columns. */
export function span(model, map, column) {
  const at = map.columns[column];
  return [model.heat.first[at], model.heat.last[at]];
}

/** Layers in the order the user wants. */
export function ordered(model, by) {
  const all = model.layers.map((_, index) => index);
  if (by === "badness") all.sort((a, b) => model.layers[b].badness - model.layers[a].badness || a - b);
  return all;
}
