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

const RESTS = 120;

/** A stretch of steps moved by a share of its width, inside the run. */
function moved([first, last], share, [begin, end]) {
  const wish = Math.round((last - first + 1) * share) || Math.sign(share);
  const by = Math.max(begin - first, Math.min(end - last, wish));
  return [first + by, last + by];
}

/** The model that shows a map: that of the page, or one fetched for a stretch of steps or for a map the
 * page's model does not hold. */
function useCloser(model, zoom, name, detail) {
  const [closer, setCloser] = useState(null);
  const lacking = Boolean(name) && !model.maps.get(name)?.width;
  useEffect(() => {
    if (!detail || !name || (!zoom && !lacking)) return undefined;
    let wanted = true;
    const take = (found) => wanted && setCloser({ zoom, name, found });
    // What is moved past quickly is shown from what is there, and not asked for.
    const timer = setTimeout(() => detail(model, zoom, name).then(take, () => {}), RESTS);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [zoom, name, lacking, model]);
  const fits = closer && closer.zoom === zoom && closer.name === name && closer.found.maps.get(name)?.width;
  return fits ? closer.found : model;
}

const titled = (model, name) => model.maps.get(name)?.title ?? name.replaceAll("_", " ");

export function MapSection({ model, state, change, query, scheme, setScheme, theme, detail }) {
  const [zoom, setZoom] = useState(null);
  const there = model.mapNames.filter((name) => model.maps.get(name).width);
  const names = [...new Set([...there, ...(detail ? (model.coming?.maps ?? []) : [])])];
  const name = names.includes(state.stat) ? state.stat : names[0];
  const shown = useCloser(model, zoom, name, detail);
  if (!name) return html`<section id="map"><h2>Map</h2><p class="soft">No series was recorded.</p></section>`;
  const map = shown.maps.get(name);
  const pan = zoom && ((share) => setZoom(moved(zoom, share, model.window)));
  return html`<section id="map">
    <h2>Map of layers over steps</h2>
    <div class="bar">
      <${Choice} label="show" value=${name} options=${names.map((key) => [key, titled(model, key)])} onChange=${(stat) => change({ stat })} />
      <${Choice} label="order" value=${state.sort ?? "depth"} options=${[["depth", "by depth"], ["badness", "worst first"]]} onChange=${(sort) => change({ sort })} />
      <${Choice} label="colours" value=${scheme} options=${SCHEMES} onChange=${setScheme} />
      ${zoom &&
      html`<span class="zoomed">
        <button onClick=${() => pan(-0.5)} disabled=${zoom[0] <= model.window[0]}>← earlier</button>
        <button onClick=${() => pan(0.5)} disabled=${zoom[1] >= model.window[1]}>later →</button>
        <button onClick=${() => setZoom(null)}>all steps</button>
      </span>`}
    </div>
    ${map?.width
      ? html`<${Legend} map=${map} scheme=${scheme} />
          <${Heatmap}
            model=${shown}
            map=${map}
            state=${state}
            change=${change}
            query=${query}
            scheme=${scheme}
            theme=${theme}
            pan=${pan}
            zoom=${shown === model && zoom ? columnsOf(model, zoom) : null}
            setZoom=${(columns) => setZoom(columns && [shown.heat.first[columns[0]], shown.heat.last[columns[1]]])}
          />`
      : html`<p class="soft" role="status">fetching the map …</p>`}
    <p class="soft hint">Drag to zoom into steps, double-click for all of them; sideways scrolling or [ and ] move along. Click a cell to open its layer or block. A layer is shown by its largest tensor.</p>
  </section>`;
}
