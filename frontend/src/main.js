// Where the page begins: a report or player with its model inside, or the live page.

import { options, render } from "preact";
import { useEffect, useState } from "preact/hooks";

import { embedded } from "./data.js";
import { html } from "./html.js";
import { detailOf, useRun } from "./live.js";
import { Player } from "./parts/player.js";
import { RunPage } from "./parts/run.js";
import { Runs } from "./parts/runs.js";
import { linked, useAddress } from "./state.js";

function remembered() {
  try {
    return localStorage.getItem("gradwatch-theme");
  } catch {
    return null;
  }
}

function useTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const [theme, set] = useState(remembered() ?? system);
  const [printing, setPrinting] = useState(false);
  const shown = printing ? "light" : theme;
  document.documentElement.dataset.theme = shown;
  useEffect(() => onPaper(setPrinting), []);
  const change = (next) => {
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("gradwatch-theme", next);
    } catch {
      // a page from disk may have no storage: then the choice lasts as long as the page
    }
    set(next);
  };
  return [shown, change];
}

/** Paper is white and nothing on it unfolds: tells `set` before and after printing, opens what is
 * folded, and closes it again. */
function onPaper(set) {
  let opened = [];
  const before = () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const folded of opened) folded.open = true;
    const later = options.debounceRendering;
    options.debounceRendering = (draw) => draw(); // the browser prints what is there when this returns
    set(true);
    options.debounceRendering = later;
  };
  const after = () => {
    for (const folded of opened) folded.open = false;
    set(false);
  };
  addEventListener("beforeprint", before);
  addEventListener("afterprint", after);
  return () => {
    removeEventListener("beforeprint", before);
    removeEventListener("afterprint", after);
  };
}

/** How far a long work is: words, and a bar where a share is known. */
function Working({ progress }) {
  const part = progress.done === null || progress.done === undefined ? null : Math.round(100 * progress.done);
  return html`<span class="working">${progress.what}${part === null ? " …" : `, ${part} %`}
    ${part !== null && html`<progress max="100" value=${part} aria-label=${progress.what}></progress>`}
  </span>`;
}

const COMING = {
  opening: "This run is being opened; what is shown comes from its coarsest level.",
  diagnosing: "This run is being diagnosed; its findings will appear by themselves.",
  "not diagnosed: too large": "This run is too large for the checks of the server: gradwatch diagnose looks at all of it.",
};

function LiveRun({ id, state, change, theme, setTheme }) {
  const { model, error, word, progress } = useRun(id);
  const back = html`<a class="back" href=${linked({})}>← runs</a>`;
  const live = html`<span class=${`live ${word}`}>${word}</span>${progress && html`<${Working} progress=${progress} />`}`;
  const problem = error ?? (word === "gone" ? "This run is no longer there." : null);
  if (!model)
    return html`<div class="page"><header><div class="title">${back}</div></header><main>
      ${problem
        ? html`<p class="problem" role="alert">${problem}</p>`
        : html`<p class="soft" role="status">${progress ? html`<${Working} progress=${progress} />` : "opening the run …"}</p>`}
    </main></div>`;
  const coming = model.coming && COMING[model.coming.what];
  return html`
    ${problem && html`<p class="problem" role="alert">${problem} What was seen last is still shown.</p>`}
    ${coming && html`<p class="coming" role="status">${coming}</p>`}
    <${RunPage} model=${model} state=${state} change=${change} theme=${theme} setTheme=${setTheme} detail=${detailOf(id)} live=${live} head=${back} />
  `;
}

function Live() {
  const [state, change] = useAddress();
  const [theme, setTheme] = useTheme();
  const known = /^[A-Za-z0-9_-]{1,64}$/.test(state.run ?? "");
  if (!known) return html`<${Runs} theme=${theme} setTheme=${setTheme} />`;
  return html`<${LiveRun} key=${state.run} id=${state.run} state=${state} change=${change} theme=${theme} setTheme=${setTheme} />`;
}

function Embedded({ model, scheme, player }) {
  const [state, change] = useAddress();
  const [theme, setTheme] = useTheme();
  useEffect(() => {
    document.body.dataset.ready = "yes";
  }, []);
  if (player) return html`<${Player} model=${model} state=${state} change=${change} theme=${theme} scheme=${scheme} />`;
  return html`<${RunPage} model=${model} state=${state} change=${change} theme=${theme} setTheme=${setTheme} scheme=${scheme} />`;
}

const root = document.getElementById("page");
const { mode, scheme } = document.body.dataset;
if (mode === "live") render(html`<${Live} />`, root);
else {
  embedded(document.getElementById("model")).then((found) =>
    render(html`<${Embedded} model=${found} scheme=${scheme} player=${mode === "player"} />`, root),
  );
}
