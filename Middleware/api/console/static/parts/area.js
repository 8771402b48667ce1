/** A text of several lines, with its label. */
import { html, useId } from "../html.js";

/**
 * @param {{label: string, value: string, onChange: (value: string) => void, rows?: number, mono?: boolean, note?: string,
 *          onKeyDown?: (event: KeyboardEvent) => void}} props `note`: below the field, and read with it
 */
export function Area({ label, value, onChange, rows = 3, mono = false, note, onKeyDown }) {
  const id = useId();
  return html`<span class="field area"><label for=${id}>${label}</label>
    <textarea id=${id} rows=${rows} value=${value} class=${mono ? "mono" : ""} spellcheck=${!mono} onKeyDown=${onKeyDown}
      aria-describedby=${note ? `${id}n` : undefined} onInput=${(event) => onChange(event.currentTarget.value)} />
    ${note && html`<span class="note" id=${`${id}n`}>${note}</span>`}
  </span>`;
}
