// The animation as a page of its own: the flow network, the loss under it, play, scrub, speed, keys.

import { useEffect, useMemo, useState } from "preact/hooks";

import { FlowChart } from "../charts/flow.js";
import { Legend } from "../charts/legend.js";
import { Line, curveLines } from "../charts/line.js";
import { SCHEMES, schemeOf } from "../colour.js";
import { span } from "../data.js";
import { marksOf } from "../flow.js";
import { html } from "../html.js";
import { plain } from "../text.js";
import { Playback, usePlayback } from "./flow.js";
import { Badge } from "./health.js";
import { Choice } from "./map.js";

export function Player({ model, state, change, theme, scheme: given }) {
  const map = model.maps.get("grad_rms");
  const [scheme, setScheme] = useState(schemeOf(given));
  const play = usePlayback(model, map, state, change);
  const marks = useMemo(() => marksOf(model), [model]);
  const loss = model.scalars.find((curve) => curve.name === "loss");
  const drawn = useMemo(() => loss && curveLines(loss, "loss"), [loss]);
  const shown = span(model, map, play.column);
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest?.("select, button")) return;
      if (event.key === " ") play.toggle();
      else if (event.key === "ArrowLeft" || event.key === ",") play.go(play.column - 1);
      else if (event.key === "ArrowRight" || event.key === ".") play.go(play.column + 1);
      else if (event.key === "Home") play.go(0);
      else if (event.key === "End") play.go(play.last);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
  return html`<div class="page player"><main>
    <section id="flow">
      <h1>${plain(model.run.name)} <${Badge} state=${model.health.state} /></h1>
      <${Playback} model=${model} map=${map} play=${play} />
      <${Legend} map=${map} scheme=${scheme} />
      <${Choice} label="colours" value=${scheme} options=${SCHEMES} onChange=${setScheme} />
      <${FlowChart} model=${model} map=${map} marks=${marks} column=${play.column} shown=${shown} scheme=${scheme} state=${state} change=${change} />
      ${loss &&
      html`<div class="under">
        <${Line} title="loss" x=${loss.x} lines=${drawn.lines} bands=${drawn.bands} log=${loss.log} theme=${theme} height=${140} range=${model.window} moving=${shown[0]} />
      </div>`}
      <p class="soft">space plays, ← and → move by one, Home and End go to the ends</p>
    </section>
  </main></div>`;
}
