// Painting a map's bytes onto a canvas: one pixel per cell, scaled up by the canvas itself.

import { table } from "../colour.js";
import { EMPTY, NONFINITE, NO_GRADIENT, ZERO, LEVELS, LOWEST } from "../data.js";

const SPECIAL = {
  [ZERO]: [70, 70, 90, 255],
  [NO_GRADIENT]: [128, 128, 128, 255],
  [NONFINITE]: [229, 56, 59, 255],
  [EMPTY]: [0, 0, 0, 0],
};

/** The four bytes of colour for each of the 256 codes. */
export function palette(scheme) {
  const colours = table(scheme);
  return Array.from({ length: 256 }, (_, byte) => {
    if (SPECIAL[byte]) return SPECIAL[byte];
    return [...colours[Math.round(((byte - LOWEST) / LEVELS) * 255)], 255];
  });
}

/** How far each column is drawn: to the next one, unless that is much farther than the sampling around. */
function reaches(columns, all) {
  const gap = (i) => (i >= 0 && i + 1 < columns.length ? columns[i + 1] - columns[i] : 0);
  return columns.map((column, i) => {
    if (i + 1 === columns.length) return Math.min(all, column + Math.max(gap(i - 1), 1));
    const around = Math.max(gap(i - 1), gap(i + 1), 1);
    return gap(i) <= 2 * around ? columns[i + 1] : column + Math.max(gap(i - 1), 1);
  });
}

/** Draw rows (arrays of bytes) over the columns first … last, each as far as the next begins. */
export function paint(canvas, rows, map, heat, first, last, scheme) {
  const width = last - first + 1;
  const colours = palette(scheme);
  canvas.width = Math.max(width, 1);
  canvas.height = Math.max(rows.length, 1);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const at = new Int32Array(width).fill(-1);
  const ends = reaches(map.columns, heat.first.length);
  for (let i = 0; i < map.width; i++) {
    const begin = Math.max(map.columns[i] - first, 0);
    for (let x = begin; x < Math.min(ends[i] - first, width); x++) at[x] = i;
  }
  rows.forEach(({ bytes }, y) => {
    for (let x = 0; x < width; x++) {
      const byte = at[x] < 0 ? EMPTY : bytes[at[x]];
      image.data.set(colours[byte], (y * width + x) * 4);
    }
  });
  context.putImageData(image, 0, 0);
  return at;
}
