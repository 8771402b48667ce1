/** Form fields with their labels. */
import { html, useId } from "../html.js";

/**
 * @param {{label: string, value: string, onChange: (value: string) => void, disabled?: boolean,
 *          options: (string | [value: string, label: string])[]}} props
 */
export function Choice({ label, value, options, onChange, disabled = false }) {
  const id = useId();
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  // A value from the address may name something that no list has any more.
  if (!pairs.some(([one]) => one === value)) pairs.push([value, value]);
  return html`<span class="field"><label for=${id}>${label}</label>
    <select id=${id} value=${value} disabled=${disabled} onChange=${(event) => onChange(event.currentTarget.value)}>
      ${pairs.map(([one, name]) => html`<option key=${one} value=${one} selected=${one === value}>${name}</option>`)}
    </select></span>`;
}

/** @param {{label: string, checked: boolean, onChange: (checked: boolean) => void, disabled?: boolean}} props */
export function Check({ label, checked, onChange, disabled = false }) {
  return html`<label class="check"><input type="checkbox" checked=${checked} disabled=${disabled}
    onChange=${(event) => onChange(event.currentTarget.checked)} /> ${label}</label>`;
}

/**
 * A switch. `note` says why it cannot be changed, or what it does.
 * @param {{label: string, checked: boolean, onChange: (checked: boolean) => void, disabled?: boolean, note?: any}} props
 */
export function Switch({ label, checked, onChange, disabled = false, note }) {
  const id = useId();
  return html`<div class="switch">
    <label><input type="checkbox" role="switch" checked=${checked} disabled=${disabled}
      aria-describedby=${note ? id : undefined} onChange=${(event) => onChange(event.currentTarget.checked)} /> ${label}</label>
    ${note && html`<p class="note" id=${id}>${note}</p>`}
  </div>`;
}

/**
 * @param {{label: string, value: string | number, onChange: (value: string) => void, type?: string, min?: number,
 *          max?: number, disabled?: boolean, autocomplete?: string, placeholder?: string}} props
 */
export function Field({ label, value, onChange, type = "text", ...rest }) {
  const id = useId();
  return html`<span class="field"><label for=${id}>${label}</label>
    <input id=${id} type=${type} value=${value} ...${rest} onInput=${(event) => onChange(event.currentTarget.value)} />
  </span>`;
}
