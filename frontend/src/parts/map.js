// The map with its choices: statistic, order, colours, zoom.

import { useEffect, useState } from "preact/hooks";

import { Heatmap } from "../charts/heatmap.js";
import { Legend } from "../charts/legend.js";
import { SCHEMES } from "../colour.js";
import { html } from "../html.js";

export function Choice({ label, value, options, onChange }) {
  return html`<label class="choice">${label}${" "}
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}
    </select>
  </label>`;
}

/** The columns of a model that show these steps. */
function columnsOf(model, [first, last]) {
  const begin = model.heat.last.findIndex((step) => step >= first);
  const end = model.heat.first.findLastIndex((step) => step <= last);
  return begin < 0 || end < begin ? null : [begin, end];
}

export function MapSection({ model, state, change, query, scheme, setScheme, theme, detail }) {
  const [zoom, setZoom] = useState(null);
  const [closer, setCloser] = useState(null);
  const names = model.mapNames.filter((name) => model.maps.get(name).width);
  const name = names.includes(state.stat) ? state.stat : names[0];
  useEffect(() => {
    setCloser(null);
    if (!zoom || !detail) return undefined;
    let wanted = true;
    detail(...zoom).then((found) => wanted && setCloser(found), () => {});
    return () => {
      wanted = false;
    };
  }, [zoom]);
  if (!name) return html`<section id="map"><h2>Map</h2><p class="soft">No series was recorded.</p></section>`;
  const shown = closer?.maps.get(name)?.width ? closer : model;
  const map = shown.maps.get(name);
  return html`<section id="map">
    <h2>Map of layers over steps</h2>
    <div class="bar">
      <${Choice} label="show" value=${name} options=${names.map((key) => [key, model.maps.get(key).title])} onChange=${(stat) => change({ stat })} />
      <${Choice} label="order" value=${state.sort ?? "depth"} options=${[["depth", "by depth"], ["badness", "worst first"]]} onChange=${(sort) => change({ sort })} />
      <${Choice} label="colours" value=${scheme} options=${SCHEMES.map((key) => [key, key])} onChange=${setScheme} />
      ${zoom && html`<button onClick=${() => setZoom(null)}>all steps</button>`}
    </div>
    <${Legend} map=${map} scheme=${scheme} />
    <${Heatmap}
      model=${shown}
      map=${map}
      state=${state}
      change=${change}
      query=${query}
      scheme=${scheme}
      theme=${theme}
      zoom=${shown === model && zoom ? columnsOf(model, zoom) : null}
      setZoom=${(columns) => setZoom(columns && [shown.heat.first[columns[0]], shown.heat.last[columns[1]]])}
    />
    <p class="soft hint">Drag to zoom into steps, double-click for all of them; click a cell to open its layer. A layer is shown by its largest tensor.</p>
  </section>`;
}
