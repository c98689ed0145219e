// A line chart: uPlot with bands, a marked moment, a limit, and words for those who do not see it.

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { html } from "../html.js";
import { number, whole } from "../text.js";
import { FONT, textWidth } from "./measure.js";
import { decades, linear, powerOfTen, stepLabels, STEPS } from "./ticks.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Marks over the lines: the healthy band, the stretch of a finding, its step, its limit; `moving` is a
 * ref to the cursor's step. */
function marks({ step, limit, band, stretch }, moving) {
  return (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    if (band) {
      const [top, bottom] = [plot.valToPos(band[1], "y", true), plot.valToPos(band[0], "y", true)];
      ctx.fillStyle = css("--band");
      ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
    }
    if (stretch) {
      const [from, to] = stretch.map((at) => plot.valToPos(at, "x", true));
      ctx.fillStyle = css("--stretch");
      ctx.fillRect(from, bbox.top, Math.max(to - from, 2 * devicePixelRatio), bbox.height);
    }
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    if (step !== null && step !== undefined) {
      const x = plot.valToPos(step, "x", true);
      ctx.strokeStyle = css("--bad");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    if (limit !== null && limit !== undefined) {
      const y = plot.valToPos(limit, "y", true);
      ctx.strokeStyle = css("--warn");
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    if (moving.current !== null && moving.current !== undefined) {
      const x = plot.valToPos(moving.current, "x", true);
      ctx.setLineDash([]);
      ctx.strokeStyle = css("--ink");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };
}

function axis(values, size) {
  return {
    stroke: css("--ink-soft"),
    grid: { stroke: css("--grid"), width: 1 },
    ticks: { stroke: css("--grid"), width: 1 },
    font: FONT,
    values,
    size,
  };
}

/** The values of an axis, also written where they can be read without eyes or by a test. */
function read(name, label) {
  return (plot, splits) => {
    const labels = label(splits);
    plot.root.parentNode?.setAttribute(`data-${name}`, labels.filter(Boolean).join(" "));
    return labels;
  };
}

/** As wide as the widest label, the tick and a little air. */
function room(plot, labels) {
  return 18 + Math.max(24, ...(labels ?? []).map((label) => textWidth(label ?? "")));
}

function valueAxis(log) {
  if (!log) return axis(read("y", linear), room);
  const made = axis(read("y", (splits) => splits.map(powerOfTen)), room);
  return { ...made, filter: decades, grid: { ...made.grid, filter: decades }, ticks: { ...made.ticks, filter: decades } };
}

function range(lines, log, limit, band) {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines)
    for (const v of line.values)
      if (v !== null && (!log || v > 0)) {
        low = Math.min(low, v);
        high = Math.max(high, v);
      }
  for (const v of [limit, ...(band ?? [])])
    if (v !== null && v !== undefined && (!log || v > 0)) {
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - pad, high + pad];
}

/** A colour of the theme by its name (`--warn`), or a colour itself. */
function inks(stroke = "--line") {
  return stroke.startsWith("--") ? css(stroke) : stroke;
}

function options(props, width, moving) {
  const { lines, log, limit, band, height = 180, bands = [] } = props;
  const [low, high] = range(lines, log, limit, band);
  return {
    width,
    height,
    cursor: { drag: { x: true, y: false }, points: { size: 7 } },
    legend: { live: true, markers: { dash: (_, i) => (lines[i - 1]?.dash ? "dashed" : "solid"), width: (_, i) => (lines[i - 1]?.width ?? 1.5) + 0.5 } },
    scales: {
      x: { time: false, range: stepsShown(props) },
      y: { distr: log ? 3 : 1, range: [low, high] },
    },
    axes: [
      { ...axis(read("x", stepLabels), 28), incrs: STEPS },
      valueAxis(log),
    ],
    bands: bands.map((pair) => ({ series: pair, fill: css("--spread") })),
    series: [
      { label: "step", value: (_, v) => (v === null ? "–" : whole(v)) },
      ...lines.map((line) => ({
        label: line.label,
        stroke: inks(line.stroke),
        width: line.width ?? 1.5,
        dash: line.dash,
        spanGaps: true,
        points: { show: props.x.length < 40 },
        value: (_, v) => number(v),
      })),
    ],
    hooks: { draw: [marks(props, moving)], setLegend: [atRest] },
  };
}

/** All steps of the run, or the stretch that was dragged; one step alone stands in the middle. */
function stepsShown({ x, range: all }) {
  const [first, last] = all ?? [x[0], x.at(-1)];
  const whole = last > first ? [first, last] : [first - 1, last + 1];
  return (_, from, to) => (x.length < 2 || (from === x[0] && to === x.at(-1)) ? whole : [from, to]);
}

/** Where nothing is pointed at, the legend tells the newest values. */
function atRest(plot) {
  if (plot.legend.idx === null || plot.legend.idx === undefined)
    plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

/** What the chart shows, in a sentence. */
export function told({ title, x, lines, step, limit, stretch }) {
  if (!x.length) return `${title}: no values`;
  const parts = lines
    .filter((line) => line.label && !line.silent)
    .map((line) => {
      const known = line.values.filter((v) => v !== null);
      if (!known.length) return `${line.label}: no values`;
      return `${line.label}: ${number(known[0])} at first, ${number(known.at(-1))} at last, lowest ${number(
        Math.min(...known),
      )}, highest ${number(Math.max(...known))}`;
    });
  const where = `steps ${x[0]} to ${x.at(-1)}`;
  const moment = step === null || step === undefined ? "" : `; step ${step} is marked`;
  const bound = limit === null || limit === undefined ? "" : `; limit ${number(limit)}`;
  const shaded = stretch ? `; steps ${stretch[0]} to ${stretch[1]} are shaded` : "";
  return `${title}, ${where}. ${parts.join("; ")}${moment}${shaded}${bound}.`;
}

/** props: title, x, lines [{label, values, stroke}], bands, log, step, stretch, limit, band, range,
 * moving, height, theme. */
export function Line(props) {
  const box = useRef(null);
  const moving = useRef(null);
  const drawn = useRef(null);
  const { x, lines, theme } = props;
  moving.current = props.moving;
  useLayoutEffect(() => {
    const node = box.current;
    if (!x.length) return undefined;
    const clean = lines.map((line) =>
      props.log ? line.values.map((v) => (v !== null && v > 0 ? v : null)) : line.values,
    );
    const width = () => Math.max(node.clientWidth, 160);
    const plot = new uPlot(options(props, width(), moving), [x, ...clean], node);
    drawn.current = plot;
    atRest(plot);
    const watch = new ResizeObserver(() => plot.setSize({ width: width(), height: props.height ?? 180 }));
    watch.observe(node);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [x, lines, theme, props.step]);
  useEffect(() => {
    if (x.length) drawn.current?.redraw(false);
  }, [props.moving]);
  return html`<figure class="chart" role="img" aria-label=${told(props)}>
    <figcaption>${props.title}${props.unit ? ` (${props.unit})` : ""}</figcaption>
    ${x.length ? html`<div ref=${box} class="plot"></div>` : html`<p class="soft">no values in these steps</p>`}
  </figure>`;
}

/** The lines of a curve of the model: last value, and the band between lowest and highest. */
export function curveLines(curve, label) {
  const thinned = curve.low.some((v, i) => v !== curve.high[i]);
  const main = { label, values: curve.last };
  if (!thinned) return { lines: [main], bands: [] };
  const thin = { width: 0.5, stroke: "transparent", silent: true };
  return {
    lines: [
      main,
      { ...thin, label: "highest", values: curve.high },
      { ...thin, label: "lowest", values: curve.low },
    ],
    bands: [[2, 3]],
  };
}
