// One stop of the Tab key for many things in a row: the arrow keys move among them.

/** A key handler for the element around the things, which `selector` finds. */
export function roving(selector, back, on) {
  return (event) => {
    if (event.key !== back && event.key !== on) return;
    const all = [...event.currentTarget.querySelectorAll(selector)];
    const next = all[all.indexOf(event.target.closest(selector)) + (event.key === on ? 1 : -1)];
    event.preventDefault();
    event.stopPropagation();
    if (!next) return;
    for (const one of all) one.setAttribute("tabindex", one === next ? "0" : "-1");
    next.focus();
  };
}
