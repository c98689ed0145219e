// The labels of axes: short, exact, and different from each other.

import { whole } from "../text.js";

const LONGEST_FIXED = 4;

/** Digits after the point that a step between labels needs, in a unit. */
function digitsOf(step, unit) {
  let digits = 0;
  while (digits < 6 && Math.abs(Math.round((step / unit) * 10 ** digits) / 10 ** digits - step / unit) > (step / unit) * 1e-6) digits += 1;
  return digits;
}

/** Labels of a linear axis: fixed digits, or one power of ten for all where these would be many. */
export function linear(splits) {
  const step = splits.length > 1 ? Math.abs(splits[1] - splits[0]) : Math.abs(splits[0]) || 1;
  const top = Math.max(...splits.map(Math.abs));
  const fixed = digitsOf(step, 1);
  const short = top < 1e5 && fixed <= LONGEST_FIXED;
  const power = short || top === 0 ? 0 : Math.floor(Math.log10(top) + 1e-9);
  const digits = digitsOf(step, 10 ** power);
  return splits.map((v) => {
    if (Math.abs(v) < step * 1e-9) return "0";
    return short ? v.toFixed(fixed) : `${(v / 10 ** power).toFixed(digits)}e${power}`;
  });
}

/** Only whole powers of ten are labelled on a log scale, and not more than fit. */
export function decades(plot, splits) {
  const powers = splits.map((v) => (v > 0 ? Math.log10(v) : NaN));
  const kept = powers.filter((p) => Math.abs(p - Math.round(p)) < 1e-6);
  const every = Math.ceil(kept.length / 6);
  return splits.map((v, i) => (kept.includes(powers[i]) && Math.round(powers[i]) % every === 0 ? v : null));
}

export function powerOfTen(value) {
  if (value === null) return "";
  const power = Math.round(Math.log10(value));
  return Math.abs(power) <= 2 ? String(Number(value.toPrecision(1))) : `1e${power}`;
}

/** Labels of steps: steps are whole. */
export const stepLabels = (splits) => splits.map((v) => (Number.isInteger(v) && v >= 0 ? whole(v) : ""));

/** Distances between labelled steps: 1, 2, 5, 10, 20 … */
export const STEPS = Array.from({ length: 40 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

/** Round steps between two, about `count` of them. */
export function roundSteps(first, last, count) {
  const apart = STEPS.find((distance) => (last - first) / distance <= count) ?? last - first;
  const out = [];
  for (let step = Math.ceil(first / apart) * apart; step <= last; step += apart) out.push(step);
  return out;
}
