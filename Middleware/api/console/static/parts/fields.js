/** Form fields with their labels. `onChange` is called with the new value. */
import { html, useId } from "../html.js";

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
