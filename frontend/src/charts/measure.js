// How wide a text is on the page, so that labels get the room they need and names end where boxes do.

import { plain, shortened } from "../text.js";

export const FONT = '11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

let context = null;

export function textWidth(text) {
  context ??= document.createElement("canvas").getContext("2d");
  context.font = FONT;
  return context.measureText(text).width;
}

/** A name cut in the middle until it fits into so many pixels. */
export function fitted(name, pixels) {
  const whole = plain(name);
  if (whole.length < 400 && textWidth(whole) <= pixels) return whole;
  let length = Math.min(whole.length, 60);
  while (length > 5 && textWidth(shortened(name, length)) > pixels) length -= 1;
  return shortened(name, length);
}
