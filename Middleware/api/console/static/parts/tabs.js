/** Tabs by the ARIA pattern: arrow keys choose, Home and End go to the ends. */
import { html, useId, useRef } from "../html.js";

/**
 * @param {{label: string, tabs: {name: string, count?: number | string}[], chosen: string,
 *          onChoose: (name: string) => void, children: any}} props `children`: the content of the chosen tab
 */
export function Tabs({ label, tabs, chosen, onChoose, children }) {
  const id = useId();
  const list = useRef(null);
  const index = Math.max(0, tabs.findIndex((tab) => tab.name === chosen));
  const choose = (next) => {
    onChoose(tabs[next].name);
    list.current.children[next]?.focus();
  };
  const onKeyDown = (event) => {
    const last = tabs.length - 1;
    const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index ? index - 1 : last, Home: 0, End: last };
    if (!(event.key in next)) return;
    event.preventDefault();
    choose(next[event.key]);
  };
  return html`<div class="tabs">
    <div role="tablist" aria-label=${label} ref=${list} onKeyDown=${onKeyDown}>
      ${tabs.map((tab, position) => html`<button type="button" role="tab" key=${tab.name} id=${`${id}t${position}`}
        aria-selected=${String(position === index)} aria-controls=${`${id}p`} tabindex=${position === index ? 0 : -1}
        onClick=${() => choose(position)}>${tab.name}${tab.count != null
          && html`<span class="count" aria-hidden="true">${tab.count}</span>`}</button>`)}
    </div>
    <div role="tabpanel" id=${`${id}p`} aria-labelledby=${`${id}t${index}`} tabindex="0">${children}</div>
  </div>`;
}
