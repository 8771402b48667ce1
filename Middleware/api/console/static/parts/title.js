/** The heading of a page; it also names the document and takes the focus when the page is opened. */
import { html, useEffect, useRef } from "../html.js";

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
