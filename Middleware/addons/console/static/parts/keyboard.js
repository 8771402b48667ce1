/** Single keys that do something, and the dialog that lists them. */
import { html, useEffect, useRef, useState } from "../html.js";
import { Dialog, Facts } from "./elements.js";

const OFF = "wilmer-console-no-shortcuts";
const KEYS = {
  "/": "search", j: "next run", k: "previous run", Enter: "open the chosen run", Escape: "close a dialog, leave the search",
  "Arrow keys": "move in a tree or in tabs", "?": "this list",
};

/** @returns {boolean} */
export function shortcutsOn() {
  return localStorage.getItem(OFF) === null;
}

/** @param {boolean} on */
export function switchShortcuts(on) {
  if (on) localStorage.removeItem(OFF);
  else localStorage.setItem(OFF, "1");
}

/** What needs the key that has the focus: a text field, a list of choices, a dialog. */
const TAKERS = "input:not([type=checkbox]), textarea, select, [contenteditable=true], dialog";

/**
 * @param {{[key: string]: (event: KeyboardEvent) => void}} actions by the key's name; the newest are used in each render
 */
export function useShortcuts(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const onKeyDown = (event) => {
      const action = latest.current[event.key];
      if (!action || !shortcutsOn() || event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.(TAKERS)) return;
      event.preventDefault();
      action(event);
    };
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  }, []);
}

/** The dialog behind `?`. */
export function KeyboardHelp() {
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  useShortcuts({ "?": () => setOpen(true) });
  return open && html`<${Dialog} title="Keyboard shortcuts" onClose=${close}>
    <${Facts} look="keys" rows=${Object.entries(KEYS).map(([key, what]) => [html`<kbd>${key}</kbd>`, what])} />
    <p class="actions"><button onClick=${close}>Close</button></p>
  <//>`;
}
