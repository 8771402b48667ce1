/** How the state of a run or a span is written: a shape and a word. */
import { html } from "../html.js";

export const SHAPES = {
  ok: "✓", running: "▶", answered: "▶", queued: "…", failed: "✕", error: "✕", refused: "⊘", cancelled: "◼", interrupted: "◼",
  "stand-in": "◇",
};

/** @param {{status: string, title?: string}} props */
export function State({ status, title }) {
  return html`<span class=${`state ${status}`} title=${title}><span class="shape" aria-hidden="true">${SHAPES[status] ?? "·"}</span> ${status}</span>`;
}

/** @param {string} status of a run @returns {boolean} */
export const isUnfinished = (status) => ["queued", "running", "answered"].includes(status);
