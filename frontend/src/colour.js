// Colour ramps. Each is monotone in lightness, so that it can be read without its hue.

const RAMPS = {
  viridis: ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"],
  cividis: ["00204c", "1b3a6d", "414d6b", "61636d", "7c7b78", "9b9476", "bcae6c", "dfc95b", "ffea46"],
  contrast: ["000000", "3b0070", "7a00a8", "c4006c", "f03a1a", "ff8400", "ffc300", "fff17a", "ffffff"],
  mono: ["0d0d0d", "2a2a2a", "484848", "656565", "838383", "a1a1a1", "bfbfbf", "dddddd", "fafafa"],
};

export const SCHEMES = ["viridis", "cividis", "contrast", "mono"];
export const BAD = "#e5383b";

function parsed(hex) {
  const number = parseInt(hex, 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

const TABLES = new Map();

/** 256 colours of a scheme as [r, g, b]. */
export function table(scheme) {
  if (!TABLES.has(scheme)) {
    const stops = RAMPS[scheme].map(parsed);
    TABLES.set(
      scheme,
      Array.from({ length: 256 }, (_, i) => {
        const at = (i / 255) * (stops.length - 1);
        const low = Math.min(Math.floor(at), stops.length - 2);
        return stops[low].map((part, c) => Math.round(part + (stops[low + 1][c] - part) * (at - low)));
      }),
    );
  }
  return TABLES.get(scheme);
}

export function colour(scheme, level) {
  const [r, g, b] = table(scheme)[Math.max(0, Math.min(255, Math.round(level * 255)))];
  return `rgb(${r},${g},${b})`;
}

/** Black or white, whichever can be read on a level's colour. */
export function inkOn(scheme, level) {
  const [r, g, b] = table(scheme)[Math.max(0, Math.min(255, Math.round(level * 255)))];
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
}
