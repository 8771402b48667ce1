/** Texts to write and texts to compare. */
import { html, useId, useMemo } from "../html.js";

// The table below has as many cells as the lines of both texts multiplied.
const MOST_CELLS = 4_000_000;

/**
 * A text with several lines.
 * @param {{label: string, text: string, onChange?: (text: string) => void, readOnly?: boolean, rows?: number}} props
 */
export function Editor({ label, text, onChange, readOnly = false, rows = 18 }) {
  const id = useId();
  return html`<div class="editor"><label class="quiet-text" for=${id}>${label}</label>
    <textarea id=${id} rows=${rows} spellcheck=${false} readOnly=${readOnly} value=${text}
      onInput=${(event) => onChange?.(event.currentTarget.value)}></textarea></div>`;
}

/**
 * What two texts differ in, line by line: side by side, or below one another where there is no room.
 * @param {{before: string, after: string, labels: [string, string]}} props
 */
export function Difference({ before, after, labels }) {
  const rows = useMemo(() => lines(before, after), [before, after]);
  const side = (name, index) => html`<div class="side"><h3>${name}</h3><pre tabindex="0">${rows
    .filter((row) => row[0] !== (index ? "-" : "+"))
    .map(([sign, line]) => (sign === " " ? `  ${line}\n` : html`<mark class=${sign === "+" ? "added" : "gone"}>${sign} ${line}${"\n"}</mark>`))}</pre></div>`;
  return html`<div role="group" aria-label="Difference" class="difference">
    ${rows.every((row) => row[0] === " ") && html`<p class="quiet-text">There is no difference.</p>`}
    ${side(labels[0], 0)}${side(labels[1], 1)}</div>`;
}

/** @param {string} before @param {string} after @returns {[" " | "-" | "+", string][]} */
export function lines(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let [endA, endB] = [a.length, b.length];
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) { endA -= 1; endB -= 1; }
  const middle = between(a.slice(start, endA), b.slice(start, endB));
  return [...a.slice(0, start).map((line) => [" ", line]), ...middle, ...a.slice(endA).map((line) => [" ", line])];
}

function between(a, b) {
  const whole = [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) return whole;
  // The length of the longest common part from each pair of lines on.
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1
        : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  const rows = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) { rows.push([" ", a[i]]); i += 1; j += 1; }
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) { rows.push(["-", a[i]]); i += 1; }
    else { rows.push(["+", b[j]]); j += 1; }
  }
  return [...rows, ...a.slice(i).map((line) => ["-", line]), ...b.slice(j).map((line) => ["+", line])];
}
