// The page of one run: the same for the report and the live page.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { schemeOf } from "../colour.js";
import { span } from "../data.js";
import { html } from "../html.js";
import { many, shortened } from "../text.js";
import { Analyses } from "./analyses.js";
import { Findings } from "./findings.js";
import { FlowSection, usePlayback } from "./flow.js";
import { Health } from "./health.js";
import { LayerSection } from "./layer.js";
import { Losses, Updates } from "./curves.js";
import { MapSection } from "./map.js";
import { Ranks } from "./ranks.js";
import { Activations, Recording, Weights } from "./rest.js";
import { hasFlow, viewsOf } from "./views.js";

const EMPTY_MAP = { width: 0, columns: [] };

function Help({ close }) {
  const keys = [
    ["/", "search for a layer"],
    ["1 … 9", "go to a part of the page"],
    ["space", "play or pause the flow"],
    [", and .", "one moment back or on"],
    ["← → ↑ ↓", "in the map, the layers and the flow: move"],
    ["+ [ ] Escape", "in the map: zoom in, move along, show all steps"],
    ["d", "dark or light"],
    ["Escape", "close the layer, or this"],
  ];
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.querySelector("button").focus();
    return () => before?.focus?.();
  }, []);
  return html`<div class="help" role="dialog" aria-label="keys" ref=${box}>
    <table><tbody>${keys.map(([key, text]) => html`<tr><th>${key}</th><td>${text}</td></tr>`)}</tbody></table>
    <button onClick=${close}>close</button>
  </div>`;
}

function Search({ model, query, setQuery, change, field }) {
  const found = query ? model.layers.filter((layer) => layer.name.toLowerCase().includes(query.toLowerCase())) : [];
  return html`<div class="search">
    <input
      ref=${field}
      type="search"
      placeholder="search layers ( / )"
      aria-label="search layers"
      value=${query}
      onInput=${(event) => setQuery(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key === "Enter" && found.length) change({ layer: found[0].name }, { push: true });
        if (event.key === "Escape") {
          setQuery("");
          event.target.blur();
        }
      }}
    />
    ${query && html`<span class="soft" id="search-count">${many(found.length, "layer")}</span>`}
  </div>`;
}

function goTo(view, change) {
  change({ view });
  document.getElementById(view)?.scrollIntoView();
}

export function Nav({ model, state, change }) {
  return html`<nav aria-label="parts of the page">
    ${viewsOf(model).map(
      (view) => html`<a
        href=${`#view=${view}`}
        aria-current=${state.view === view ? "true" : undefined}
        onClick=${(event) => {
          event.preventDefault();
          goTo(view, change);
        }}
      >${view}</a>`,
    )}
  </nav>`;
}

/** Changes the address; a layer chosen from afar is brought into view, one from a map stays put. */
function opening(change) {
  return (part, options = {}) => {
    change(part, options);
    if (part.layer && !options.stay)
      requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById("layer")?.scrollIntoView()));
  };
}

/** The keys of the page, wherever the focus is, unless one is writing. */
function useKeys({ model, field, help, setHelp, theme, setTheme, change, play }) {
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      const view = viewsOf(model)[Number(event.key) - 1];
      if (event.key === "/") field.current?.focus();
      else if (event.key === "?") setHelp(!help);
      else if (event.key === "d") setTheme(theme === "dark" ? "light" : "dark");
      else if (event.key === "Escape") help ? setHelp(false) : change({ layer: null });
      else if (event.key === " " && !event.target.closest?.("button, summary, a, [role=button]")) play.toggle();
      else if (event.key === "," || event.key === ".") play.go(play.column + (event.key === "." ? 1 : -1));
      else if (view) goTo(view, change);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
}

export function RunPage({ model, state, change: write, theme, setTheme, detail, live, head, scheme: given }) {
  const change = opening(write);
  const [query, setQuery] = useState("");
  const [scheme, setScheme] = useState(schemeOf(given));
  const [help, setHelp] = useState(false);
  const field = useRef(null);
  const flowMap = model.maps.get("grad_rms") ?? EMPTY_MAP;
  const play = usePlayback(model, flowMap, state, change);
  useEffect(() => {
    const wanted = state.view ?? (state.layer && "layer");
    if (wanted) document.getElementById(wanted)?.scrollIntoView({ behavior: "instant" });
  }, []);
  useKeys({ model, field, help, setHelp, theme, setTheme, change, play });
  const step = state.step === undefined ? null : Number(state.step);
  const shared = { model, state, change, theme, scheme, query };
  const flowing = hasFlow(model);
  useMemo(() => {
    document.title = `${shortened(model.run.name, 80)}: ${model.health.state}`;
  }, [model]);
  return html`<div class="page">
    <header>
      <div class="title">${head}<h1>${shortened(model.run.name, 80)}</h1>${live}</div>
      <${Search} model=${model} query=${query} setQuery=${setQuery} change=${change} field=${field} />
      <div class="tools">
        <button onClick=${() => setTheme(theme === "dark" ? "light" : "dark")} aria-label="dark or light">${theme === "dark" ? "☀" : "☾"}</button>
        <button onClick=${() => setHelp(!help)} aria-label="keys">?</button>
      </div>
      <${Nav} model=${model} state=${state} change=${change} />
    </header>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
    <main>
      <${Health} model=${model} change=${change} />
      <${Findings} ...${shared} />
      <${Losses} model=${model} theme=${theme} moving=${flowing && (play.playing || step !== null) ? span(model, flowMap, play.column)[0] : step} />
      <${Ranks} model=${model} theme=${theme} />
      <${MapSection} ...${shared} setScheme=${setScheme} detail=${detail} />
      <${LayerSection} ...${shared} />
      ${flowing && html`<${FlowSection} ...${shared} play=${play} map=${flowMap} />`}
      <${Analyses} model=${model} change=${change} scheme=${scheme} />
      <${Updates} model=${model} theme=${theme} />
      <${Activations} ...${shared} />
      <${Weights} model=${model} />
      <${Recording} model=${model} />
    </main>
  </div>`;
}
