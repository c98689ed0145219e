// The flow network with playback: play, pause, scrub, speed.

import { useEffect, useMemo, useState } from "preact/hooks";

import { FlowChart } from "../charts/flow.js";
import { Legend } from "../charts/legend.js";
import { columnOf, span } from "../data.js";
import { marksOf } from "../flow.js";
import { html } from "../html.js";
import { many, number, shortened, steps } from "../text.js";
import { Choice } from "./map.js";

const SPEEDS = [["5", "slow"], ["15", "normal"], ["45", "fast"]];

/** The column shown and the means to change it; plays by itself while asked to. */
export function usePlayback(model, map, state, change) {
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState("15");
  const [at, setAt] = useState(null);
  const last = Math.max(map.width - 1, 0);
  const given = state.step === undefined ? last : columnOf(model, map, Number(state.step));
  const column = Math.min(at ?? given, last);
  useEffect(() => setAt(null), [state.step]);
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setInterval(() => {
      setAt((now) => {
        const next = (now ?? given) + 1;
        if (next > last) {
          setPlaying(false);
          return last;
        }
        return next;
      });
    }, 1000 / Number(speed));
    return () => clearInterval(timer);
  }, [playing, speed, last]);
  const go = (to) => {
    if (!map.width) return;
    const next = Math.max(0, Math.min(last, to));
    setAt(next);
    change({ step: span(model, map, next)[0] });
  };
  const toggle = () => {
    if (!map.width) return;
    if (!playing && column === last) setAt(0);
    setPlaying(!playing);
  };
  return { column, last, playing, toggle, go, speed, setSpeed };
}

export function Playback({ model, map, play }) {
  const [first, end] = span(model, map, play.column);
  return html`<div class="bar playback">
    <button onClick=${play.toggle} aria-pressed=${String(play.playing)}>${play.playing ? "❚❚ pause" : "▶ play"}</button>
    <input
      type="range"
      min="0"
      max=${play.last}
      value=${play.column}
      aria-label="step"
      aria-valuetext=${steps(first, end)}
      onInput=${(event) => play.go(Number(event.target.value))}
    />
    <output class="num" id="flow-step">${steps(first, end)}</output>
    <${Choice} label="speed" value=${play.speed} options=${SPEEDS} onChange=${play.setSpeed} />
  </div>`;
}

/** Decades from which on a path is drawn unasked: one that loses less is no news. */
const NEWS = 0.5;

function Path({ path, change, drawn, draw }) {
  const kind = path.kind === "attenuating" ? "loses most" : "carries most";
  const ends = [path.layers[0], path.layers.at(-1)].map((name) => shortened(name, 40));
  return html`<li>
    the path that ${kind}: ${path.layers.length} layers from ${ends[0]} to ${ends[1]},${" "}
    <span class="num">${number(Math.abs(path.decades_lost))}</span> decades ${path.decades_lost < 0 ? "gained" : "lost"} on the way back
    ${path.bottlenecks.length > 0 && html`, mostly at <${Names} names=${path.bottlenecks} change=${change} />`}${" "}
    <button aria-pressed=${String(drawn)} onClick=${() => draw(drawn ? null : path.kind)}>draw it</button>
  </li>`;
}

function Names({ names, change }) {
  return names.slice(0, 4).map(
    (name) => html`<button class="link" onClick=${() => change({ layer: name })}>${shortened(name, 40)}</button> `,
  );
}

function Troubles({ flow, change, path: drawn, draw }) {
  if (!flow.paths?.length && !flow.regions?.length) return null;
  return html`<ul class="troubles">
    ${flow.paths.map((path) => html`<${Path} path=${path} change=${change} drawn=${path === drawn} draw=${draw} />`)}
    ${flow.regions.map(
      (region) => html`<li>
        ${region.kind} region (${region.severity}${region.current ? "" : ", past"}): ${many(region.count, "layer")},${" "}
        ${steps(region.first_step, region.last_step)}, <${Names} names=${region.layers} change=${change} />
      </li>`,
    )}
  </ul>`;
}

export function FlowSection({ model, state, change, scheme, play, map }) {
  const marks = useMemo(() => marksOf(model), [model]);
  const [kind, draw] = useState(undefined);
  const path = model.flow.paths?.find((one) => (kind === undefined ? one.decades_lost >= NEWS : one.kind === kind));
  if (!map || !model.flow.nodes.length) return null;
  const shown = span(model, map, play.column);
  const used = new Set([...marks.values()].flat().map(({ sign, word }) => ` ${sign} ${word}`));
  return html`<section id="flow">
    <h2>Flow of the gradient</h2>
    <p class="soft">
      Colour is the ${map.title} of a layer, width how much of it passes.
      ${model.flow.assumed ? " The order of the layers is assumed: no graph was recorded." : ""}
      ${model.flow.grouped ? " Layers are grouped into blocks; a block shows its highest layer." : ""}
      ${[...used]}
    </p>
    <${Playback} model=${model} map=${map} play=${play} />
    <${Legend} map=${map} scheme=${scheme} />
    <${FlowChart} model=${model} map=${map} marks=${marks} column=${play.column} shown=${shown} scheme=${scheme} state=${state} change=${change} path=${path} />
    <${Troubles} flow=${model.flow} change=${change} path=${path} draw=${draw} />
  </section>`;
}
