/** Where the time went: one sentence, and its parts as one bar. */
import { html, useId } from "../../html.js";
import { isUnfinished } from "../../parts/elements.js";
import { duration, percent } from "../../parts/format.js";

/** The look of a part by its kind; the words stand beside it. */
const LOOKS = {
  gate: "wait", lock: "wait", turn: "wait", pause: "wait", load: "load", prompt: "read", write: "write", answer: "write",
  tool: "tool", embedding: "tool", memory: "tool", retry: "bad",
};

/**
 * @param {{run: object, explanation: {text: string, odd?: string[], parts: {what: string, kind: string, us: number}[]} | null}} props
 */
export function Why({ run, explanation }) {
  const id = useId();
  const parts = (explanation?.parts ?? []).filter((part) => part.us > 0);
  const whole = parts.reduce((sum, part) => sum + part.us, 0);
  const look = (part) => `bar ${LOOKS[part.kind] ?? "own"}`;
  return html`<section class="why" aria-labelledby=${id}>
    <h2 id=${id}>Why it took this long</h2>
    <p class="sentence">${explanation?.text || (isUnfinished(run.status) ? "It is still at work; the explanation comes with its end."
      : "Nothing was recorded that could explain it.")}</p>
    ${whole > 0 && html`<div class="share" aria-hidden="true">${parts.map((part) => html`<i class=${look(part)} title=${`${part.what}, ${
        duration(part.us)}`} style=${{ flexGrow: part.us }}></i>`)}</div>
      <ul class="parts">${parts.map((part) => html`<li><i class=${look(part)} aria-hidden="true"></i> <span class="num">${
        duration(part.us)}</span> ${part.what} <span class="quiet-text num">${percent(part.us, whole)}</span></li>`)}</ul>`}
    ${explanation?.odd?.map((sentence) => html`<${Odd}>${sentence}<//>`)}
  </section>`;
}

/** What a reader would not expect. */
export function Odd({ children }) {
  return html`<p class="odd"><span class="shape" aria-hidden="true">!</span> ${children}</p>`;
}
