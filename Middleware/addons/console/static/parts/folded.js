/** Texts as they are: monospace, folded when long, and quick to scroll when very long. */
import { html, useEffect, useMemo, useState } from "../html.js";
import { count } from "./format.js";

const FOLDED_ABOVE = 4000;
// The browser lays out only the visible blocks of a very long text.
const BLOCK = 8000;

/** @param {{text: string, label?: string}} props `label`: what is folded, where a page has several */
export function Folded({ text, label }) {
  const [whole, setWhole] = useState(false);
  useEffect(() => setWhole(false), [label]);
  const long = text.length > FOLDED_ABOVE;
  const blocks = useMemo(() => inBlocks(long && !whole ? text.slice(0, FOLDED_ABOVE) : text), [text, whole]);
  return html`<div class="folded">
    <pre>${blocks.length === 1 ? blocks[0] : blocks.map((block) => html`<span class="block">${block}</span>`)}</pre>
    ${long && html`<button class="quiet" onClick=${() => setWhole(!whole)}>${whole ? "Show less" : `Show all ${count(text.length)} characters`}</button>`}
  </div>`;
}

/** @param {string} text @returns {string[]} pieces that end at a line's end where there is one */
function inBlocks(text) {
  if (text.length <= 2 * BLOCK) return [text];
  const blocks = [];
  for (let start = 0; start < text.length;) {
    const near = text.indexOf("\n", start + BLOCK);
    // A text without line ends is cut anywhere.
    const end = near < 0 || near > start + 2 * BLOCK ? start + BLOCK : near + 1;
    blocks.push(text.slice(start, end));
    start = end;
  }
  return blocks;
}

export function CopyButton({ text, label = "Copy" }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    setSaid(await copyText(typeof text === "function" ? text() : text).then(() => "Copied", () => "The browser does not allow it"));
    setTimeout(() => setSaid(""), 2000);
  };
  return html`<button class="quiet" onClick=${copy}>${label}</button>
    <span class="said" role="status">${said}</span>`;
}

/** @param {string} text */
async function copyText(text) {
  // Browsers offer the clipboard to pages of this computer and of https alone; a phone on the network has the older way.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("not copied");
  return undefined;
}

/** Have the browser save a file. @param {string} name @param {string} text */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
