/** What pages are made of: headings, problems, states, tables, fields, dialogs, tabs. */
import { useAction } from "../api.js";
import { html, instead, useEffect, useErrorBoundary, useId, useRef, useState } from "../html.js";

// What stands on a page when something did not work, is under way, or is not there.

/** @param {{error: {message: string, where?: string} | null, retry?: () => void, onClose?: () => void}} props */
export function Problem({ error, retry, onClose }) {
  return error && html`<div class="problem" role="alert">
    <p><span class="shape" aria-hidden="true">✕</span> ${error.message}</p>
    ${error.where && html`<p class="where">${error.where}</p>`}
    <p class="actions">
      ${retry && html`<button onClick=${retry}>Try again</button>`}
      ${onClose && html`<button onClick=${onClose}>Close</button>`}
    </p>
  </div>`;
}

/** Shows `children`, or `instead` once one of them has failed. @param {{children: object, instead: object}} props */
export function Guarded({ children, instead }) {
  const [error] = useErrorBoundary();
  return error ? instead : children;
}

/** A line that appears only if something takes long: most answers are there before it could be read. */
export function Loading() {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return html`<p class="loading" role="status">${shown ? "Loading …" : ""}</p>`;
}

/**
 * What a call of the API returned, once it is there.
 * @param {{from: ReturnType<typeof import("../api.js").useApi>, children: (data: any) => any}} props
 */
export function Loaded({ from: { data, error, reload }, children }) {
  return [html`<${Problem} error=${error} retry=${reload} />`, data ? children(data) : !error && html`<${Loading} />`];
}

/** What a reader would not expect. */
export function Odd({ children }) {
  return html`<p class="odd"><span class="shape" aria-hidden="true">!</span> ${children}</p>`;
}

/** What a list says when it has nothing: what would be here, and how to get it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

// The heading of a page; it also names the document and takes the focus when the page is opened.

/** Set once the first page is shown: a reader who just opened the console starts at the top of the document. */
let opened = false;

/** @param {{children: string | string[]}} props */
export function Title({ children }) {
  const heading = useRef(null);
  const name = [children].flat().join("");
  useEffect(() => { document.title = `${name} · WilmerAI`; }, [name]);
  useEffect(() => {
    // A dialog keeps the focus that it has.
    if (opened && !document.querySelector("dialog[open]")) heading.current?.focus({ preventScroll: true });
    opened = true;
  }, []);
  return html`<h1 ref=${heading} tabindex="-1">${children}</h1>`;
}

// How the state of a run or a span is written: a shape and a word.

export const SHAPES = {
  ok: "✓", running: "▶", answered: "▶", queued: "…", failed: "✕", error: "✕", refused: "⊘", cancelled: "◼", interrupted: "◼",
  "stand-in": "◇", healthy: "●", slow: "◐", loading: "◌", stopped: "✕", "not asked": "○",
};

/** @param {{status: string, title?: string}} props */
export function State({ status, title }) {
  return html`<span class=${`state ${status}`} title=${title}><span class="shape" aria-hidden="true">${SHAPES[status] ?? "·"}</span> ${status}</span>`;
}

/** @param {string} status of a run @returns {boolean} */
export const isUnfinished = (status) => ["queued", "running", "answered"].includes(status);

// Tables, and terms with their values.

/**
 * A table. On a phone each row is a card, in which every value stands next to the name of its column.
 * @param {{label: string, rows: any[], columns: {[name: string]: (row: any) => any}, numbers?: string[],
 *   keyOf?: (row: any) => string, lookOf?: (row: any) => string, look?: string}} props `look`: classes
 */
export function Table({ label, rows, columns, numbers = [], keyOf, lookOf, look = "" }) {
  const names = Object.keys(columns);
  const kind = (name) => (numbers.includes(name) ? "num" : "");
  return html`<table class=${`cards ${look}`} role="table" aria-label=${label}>
    <thead role="rowgroup"><tr role="row">${names.map((name) => (name
      ? html`<th role="columnheader" scope="col" class=${kind(name)}>${name}</th>` : html`<td role="cell"></td>`))}</tr></thead>
    <tbody role="rowgroup">${rows.map((row, n) => html`<tr role="row" key=${keyOf?.(row) ?? n} class=${lookOf?.(row)}>${names.map((name) => html`
      <td role="cell" data-label=${name} class=${kind(name)}><div>${columns[name](row)}</div></td>`)}</tr>`)}</tbody>
  </table>`;
}

/**
 * Terms with what is known of each; what is not known has no line.
 * @param {{rows: [term: string, value: any, look?: string][], look?: string}} props
 */
export function Facts({ rows, look = "facts" }) {
  return html`<dl class=${look}>${rows.filter(([, value]) => value != null && value !== "")
    .map(([term, value, kind]) => html`<div key=${term} class=${kind}><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;
}

// Form fields with their labels. `onChange` is called with the new value.

/** @param {{label: string, value: string, options: (string | [value: string, label: string])[], onChange: (value: string) => void}} props */
export function Choice({ label, value, options, onChange, ...rest }) {
  const id = useId();
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  // A value from the address may name something that no list has any more.
  if (!pairs.some(([one]) => one === value)) pairs.push([value, value]);
  return html`<span class="field"><label for=${id}>${label}</label>
    <select id=${id} value=${value} ...${rest} onChange=${(event) => onChange(event.currentTarget.value)}>
      ${pairs.map(([one, name]) => html`<option key=${one} value=${one} selected=${one === value}>${name}</option>`)}
    </select></span>`;
}

/** A box to tick, or, as `type`, a radio button. */
export function Check({ label, onChange, type = "checkbox", ...rest }) {
  return html`<label class="check"><input type=${type} ...${rest} onChange=${(event) => onChange(event.currentTarget.checked)} /> ${label}</label>`;
}

/** A switch. `note` says why it cannot be changed, or what it does. */
export function Switch({ note, ...rest }) {
  const id = useId();
  return html`<div class="switch"><${Check} role="switch" aria-describedby=${id} ...${rest} /><p class="note" id=${id}>${note}</p></div>`;
}

/** A line of text or a number; `rest` are properties of its `input`. */
export function Field({ label, onChange, type = "text", ...rest }) {
  const id = useId();
  return html`<span class="field"><label for=${id}>${label}</label>
    <input id=${id} type=${type} ...${rest} onInput=${(event) => onChange(event.currentTarget.value)} /></span>`;
}

/** A text of several lines; `note` stands below the field, and is read with it. */
export function Area({ label, onChange, note, ...rest }) {
  const id = useId();
  return html`<span class="field area"><label for=${id}>${label}</label>
    <textarea id=${id} rows="3" ...${rest} aria-describedby=${note && `${id}n`} onInput=${(event) => onChange(event.currentTarget.value)} />
    ${note && html`<span class="note" id=${`${id}n`}>${note}</span>`}</span>`;
}

// Dialogs: they keep the focus, close with Escape, and give the focus back.

/** @param {{title: string, onClose: () => void, children: any}} props */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${instead(onClose)}>
    <h2 id=${id}>${title}</h2>
    ${children}
  </dialog>`;
}

/**
 * Ask before something is done. The dialog closes when it is done; an error is shown in it.
 * @param {{title: string, children: any, confirm: string, action: () => Promise<any>, onClose: () => void, look?: string,
 *   disabled?: boolean}} props `look`: of the button; what cannot be taken back is a danger
 */
export function Confirm({ title, children, confirm, action, onClose, look = "danger", disabled = false }) {
  const doing = useAction(async () => {
    await action();
    onClose();
  });
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${instead(doing.run)}>
      ${children}
      <${Problem} error=${doing.error} />
      <p class="actions">
        <button type="submit" class=${look} disabled=${doing.busy || disabled}>${confirm}</button>
        <button onClick=${onClose}>Cancel</button>
      </p>
    </form>
  <//>`;
}

// Tabs and toolbars by the ARIA pattern: one stop of the tabulator key; arrow keys, Home and End inside.

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
