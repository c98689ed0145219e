// Painting a map's bytes onto a canvas: a few pixels per cell, scaled up by the canvas itself.

import { special, table } from "../colour.js";
import { EMPTY, isLevel, level, NONFINITE, NO_GRADIENT, ZERO } from "../data.js";

/** Lines of pixels per row: enough for the patterns of what is no level. */
export const LINES = 3;
const KINDS = { [ZERO]: "zero", [NO_GRADIENT]: "none", [NONFINITE]: "nonfinite" };

/** How far each column is drawn: to the next one, unless that is much farther than the sampling around. */
function reaches(columns, all) {
  const gap = (i) => (i >= 0 && i + 1 < columns.length ? columns[i + 1] - columns[i] : 0);
  return columns.map((column, i) => {
    if (i + 1 === columns.length) return Math.min(all, column + Math.max(gap(i - 1), 1));
    const around = Math.max(gap(i - 1), gap(i + 1), 1);
    return gap(i) <= 2 * around ? columns[i + 1] : column + Math.max(gap(i - 1), 1);
  });
}

/** Which of the map's columns each pixel shows; -1 where none. */
function shownAt(map, heat, first, width) {
  const at = new Int32Array(width).fill(-1);
  const ends = reaches(map.columns, heat.first.length);
  for (let i = 0; i < map.width; i++) {
    const begin = Math.max(map.columns[i] - first, 0);
    for (let x = begin; x < Math.min(ends[i] - first, width); x++) at[x] = i;
  }
  return at;
}

/** Put one byte's colour into every line of its cell. */
function putCell(image, byte, x, y, scheme, ramp) {
  for (let line = 0; line < LINES; line++) {
    const rgb = isLevel(byte) ? ramp[Math.round(level(byte) * 255)] : special(scheme, KINDS[byte], x, line);
    const at = ((y * LINES + line) * image.width + x) * 4;
    [image.data[at], image.data[at + 1], image.data[at + 2], image.data[at + 3]] = [rgb[0], rgb[1], rgb[2], 255];
  }
}

/** Draw rows (arrays of bytes) over the columns first … last, each as far as the next begins. */
export function paint(canvas, rows, map, heat, first, last, scheme) {
  const width = last - first + 1;
  canvas.width = Math.max(width, 1);
  canvas.height = Math.max(rows.length, 1) * LINES;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const at = shownAt(map, heat, first, width);
  const ramp = table(scheme);
  rows.forEach(({ bytes }, y) => {
    for (let x = 0; x < width; x++) {
      const byte = at[x] < 0 ? EMPTY : bytes[at[x]];
      if (byte !== EMPTY) putCell(image, byte, x, y, scheme, ramp);
    }
  });
  context.putImageData(image, 0, 0);
  return at;
}

/** A sample of what is no level, for the legend. */
export function paintSample(canvas, byte, scheme) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let x = 0; x < canvas.width; x++) putCell(image, byte, x, 0, scheme, null);
  context.putImageData(image, 0, 0);
}
