/** Tabs and toolbars by the ARIA pattern: one stop of the tabulator key; arrow keys, Home and End inside. */
import { html, useId, useRef } from "../html.js";

/** @returns {number | undefined} the index that a key leads to from `index`, of so many in a circle */
function move(event, index, length) {
  const next = { ArrowRight: (index + 1) % length, ArrowLeft: (index + length - 1) % length, Home: 0, End: length - 1 }[event.key];
  if (next !== undefined) event.preventDefault();
  return next;
}

/**
 * @param {{label: string, tabs: {name: string, count?: number | string}[], chosen: string,
 *          onChoose: (name: string) => void, children: any}} props `children`: the content of the chosen tab
 */
export function Tabs({ label, tabs, chosen, onChoose, children }) {
  const id = useId();
  const list = useRef(null);
  const index = Math.max(0, tabs.findIndex((tab) => tab.name === chosen));
  const choose = (next) => {
    if (next === undefined) return;
    onChoose(tabs[next].name);
    list.current.children[next]?.focus();
  };
  return html`<div>
    <div role="tablist" aria-label=${label} ref=${list} onKeyDown=${(event) => choose(move(event, index, tabs.length))}>
      ${tabs.map(({ name, count }, position) => html`<button role="tab" key=${name} id=${`${id}t${position}`}
        aria-selected=${String(position === index)} aria-controls=${`${id}p`} tabindex=${position === index ? 0 : -1}
        onClick=${() => choose(position)}>${name}${count != null && html`<span class="count" aria-hidden="true">${count}</span>`}</button>`)}
    </div>
    <div role="tabpanel" id=${`${id}p`} aria-labelledby=${`${id}t${index}`} tabindex="0">${children}</div>
  </div>`;
}

/** Buttons; dialogs may stand between them. */
export function Toolbar({ label, children }) {
  const bar = useRef(null);
  const onKeyDown = (event) => {
    const all = [...bar.current.querySelectorAll(":scope > button:not(:disabled)")];
    const at = all.indexOf(document.activeElement);
    if (at >= 0) all[move(event, at, all.length)]?.focus();
  };
  return html`<div class="toolbar" role="toolbar" aria-label=${label} ref=${bar} onKeyDown=${onKeyDown}>${children}</div>`;
}
