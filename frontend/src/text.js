// Numbers and names for people: the same forms as gradwatch.text, so that views agree.

/** A number in so many digits; one that lies exactly between two goes to the even one, as in Python. */
function rounded(value, digits) {
  const [mantissa, power] = value.toExponential(60).split("e");
  const kept = mantissa.slice(0, mantissa.indexOf(".") + digits);
  const between = /^50*$/.test(mantissa.slice(kept.length));
  if (between && Number(kept.at(-1)) % 2 === 0) return Number(`${kept}e${power}`);
  return Number(value.toPrecision(digits));
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-2 && size < 1e4) return String(rounded(value, size < 1000 ? 3 : 4));
  const [digits, power] = rounded(value, 2).toExponential(1).split("e");
  return `${digits}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

export function whole(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

const ODD = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** A name in which nothing is invisible or turns the text around. */
export function plain(name) {
  const text = name === "" ? "(model)" : name;
  return text.replace(ODD, (sign) => {
    const code = sign.codePointAt(0);
    if (code < 256) return `\\x${code.toString(16).padStart(2, "0")}`;
    return `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** At most `width` characters, cut in the middle, where names differ least. */
export function shortened(name, width) {
  const text = plain(name);
  if (text.length <= width) return text;
  const tail = Math.floor(((width - 1) * 2) / 3);
  return `${text.slice(0, width - 1 - tail)}…${text.slice(-tail)}`;
}

/** Names without what all of them share before and after the part that differs. */
function distinct(names) {
  const parts = names.map((name) => name.split("."));
  const shortest = Math.min(...parts.map((one) => one.length)) - 1;
  const same = (at) => parts.every((one) => one.at(at) === parts[0].at(at));
  let [head, tail] = [0, 0];
  while (head < shortest && same(head)) head += 1;
  while (tail < shortest - head && same(-1 - tail)) tail += 1;
  return parts.map((one) => one.slice(Math.max(head - 1, 0), one.length - tail).join("."));
}

/** Names in at most `width` characters; where they would then look alike, the parts that differ. */
export function labels(names, width) {
  const cut = (all) => all.map((name) => shortened(name, width));
  return new Set(cut(names)).size < new Set(names).size ? cut(distinct(names)) : cut(names);
}

export function many(count, word) {
  return `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
}

export function steps(first, last) {
  return first === last ? `step ${whole(first)}` : `steps ${whole(first)}–${whole(last)}`;
}
