/** Where the time went: one sentence, and its parts as one bar. */
import { html, useId } from "../../html.js";
import { count, duration, percent } from "../../parts/format.js";
import { isUnfinished } from "../../parts/run_data.js";

/** The look of a part; the words stand beside it. */
const LOOKS = {
  gate: "wait", wait: "wait", lock: "wait", turn: "wait", load: "load", read: "read", prompt: "read", write: "write",
  generate: "write", tool: "tool", embedding: "tool", memory: "tool", retry: "bad", retries: "bad", own: "own", rest: "own",
};

/**
 * @param {{run: object, explanation: {text: string, parts: {what: string, kind?: string, endpoint?: string, us: number,
 *          tokens?: number, node?: string}[], odd?: string[]} | null}} props
 */
export function Why({ run, explanation }) {
  const id = useId();
  const parts = (explanation?.parts ?? []).filter((part) => part.us > 0);
  const whole = parts.reduce((sum, part) => sum + part.us, 0);
  return html`<section class="why" aria-labelledby=${id}>
    <h2 id=${id}>Why it took this long</h2>
    <p class="sentence">${explanation?.text || (isUnfinished(run.status) ? "It is still at work; the explanation comes with its end."
      : "Nothing was recorded that could explain it.")}</p>
    ${whole > 0 && html`<div class="share" aria-hidden="true">${parts.map((part, index) => html`<i key=${index}
        class=${`bar ${LOOKS[part.kind] ?? "own"}`} title=${`${part.what}, ${duration(part.us)}`}
        style=${{ flexGrow: part.us }}></i>`)}</div>
      <ul class="parts">${parts.map((part, index) => html`<li key=${index}><i class=${`bar ${LOOKS[part.kind] ?? "own"}`}
        aria-hidden="true"></i> <span class="num">${duration(part.us)}</span> ${what(part)} <span class="quiet-text num">${
        percent(part.us, whole)}</span></li>`)}</ul>`}
    ${(explanation?.odd ?? []).map((sentence) => html`<p class="odd" key=${sentence}><span class="shape" aria-hidden="true">!</span> ${sentence}</p>`)}
  </section>`;
}

function what(part) {
  const named = part.endpoint && !part.what.includes(part.endpoint) ? `${part.endpoint}: ${part.what}` : part.what;
  return part.tokens != null && !/\d/.test(part.what) ? `${named}, ${count(part.tokens)} tokens` : named;
}
