// Colour ramps. Each is monotone in lightness, so that it can be read without its hue.

const RAMPS = {
  viridis: ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"],
  cividis: ["00204c", "1b3a6d", "414d6b", "61636d", "7c7b78", "9b9476", "bcae6c", "dfc95b", "ffea46"],
  contrast: ["000000", "3b0070", "7a00a8", "c4006c", "f03a1a", "ff8400", "ffc300", "fff17a", "ffffff"],
  mono: ["0d0d0d", "2a2a2a", "484848", "656565", "838383", "a1a1a1", "bfbfbf", "dddddd", "fafafa"],
};

/** Each with its title: our name and the original program's. */
export const SCHEMES = [
  ["viridis", "viridis (Default)"],
  ["cividis", "cividis (ColorBlind)"],
  ["contrast", "contrast (HighContrast)"],
  ["mono", "mono (Monochrome)"],
];

/** The scheme a page was made with. */
export const schemeOf = (name) => (Object.hasOwn(RAMPS, name) ? name : "viridis");

/** NaN or Inf: a colour that is nowhere in the ramp, the same as in the moving pictures. */
const BAD = { viridis: [229, 56, 59], cividis: [213, 94, 0], contrast: [0, 220, 255], mono: [255, 255, 255] };
const ZERO_GREY = [70, 70, 90];
const NO_GRADIENT_GREY = [128, 128, 128];

export const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
export const bad = (scheme) => BAD[scheme];

/** The colour of what is no level, at a place of its cell: greys would be levels in `mono`, so there
 * NaN is chequered, zero a white line on black and no gradient a black line on white. */
export function special(scheme, kind, x, line) {
  if (scheme !== "mono") return { nonfinite: BAD[scheme], zero: ZERO_GREY, none: NO_GRADIENT_GREY }[kind];
  const white = { nonfinite: (x + line) % 2 === 0, zero: line === 1, none: line !== 1 }[kind];
  return white ? [255, 255, 255] : [0, 0, 0];
}

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
  return css(table(scheme)[Math.max(0, Math.min(255, Math.round(level * 255)))]);
}

/** Black or white, whichever can be read on a level's colour. */
export function inkOn(scheme, level) {
  return inkFor(table(scheme)[Math.max(0, Math.min(255, Math.round(level * 255)))]);
}

/** Black above this luminance, white below it: either way at least 4.5 : 1. */
const DARK_BELOW = 0.179;

export function inkFor(rgb) {
  const [r, g, b] = rgb.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > DARK_BELOW ? "#000" : "#fff";
}
