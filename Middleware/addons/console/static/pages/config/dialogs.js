/** The dialogs of the page Configuration: older versions, a conflict, and what a change lets the server do. */
import { url, useApi } from "../../api.js";
import { html, useState } from "../../html.js";
import { Difference } from "../../parts/editor.js";
import { Check, Confirm, Loaded, Problem } from "../../parts/elements.js";
import { bytes, Moment } from "../../parts/format.js";

const differs = (label, before, mine) => html`<${Difference} before=${before} after=${mine} labels=${[label, "In the editor"]} language="json" />`;

/** @param {{path: string, mine: string, restore: (text: string) => void, onClose: () => void}} props */
export function History({ path, mine, restore, onClose }) {
  const [at, setAt] = useState(null);
  const versions = useApi(url`config/history?path=${path}`);
  const { data, error } = useApi(at && url`config/history?path=${path}&version=${at}`);
  return html`<${Confirm} title="History" confirm="Restore" look="primary" disabled=${!data} action=${async () => restore(data.text)} onClose=${onClose}>
    <p class="mono">${path}</p>
    <${Loaded} from=${versions}>${(all) => html`<div class="versions">
      ${!all.versions.length && html`<p class="note">The console has not saved this file yet. Each save keeps what it replaces.</p>`}
      ${all.versions.map((one) => html`<${Check} type="radio" name="version" onChange=${() => setAt(one.at)}
        label=${html`until <${Moment} us=${one.at} /> <span class="note num">${bytes(one.size)}</span>`} />`)}</div>`}<//>
    <${Problem} error=${error} />
    ${data && differs("Older version", data.text, mine)}
    <p class="note">Restore puts the older text into the editor, where it can be looked at and saved.</p>
  <//>`;
}

/** @param {{powers: {text: string, line: number | null}[], save: () => Promise<void>, onClose: () => void}} props */
export function MorePowers({ powers, save, onClose }) {
  return html`<${Confirm} title="This change lets the server do more" confirm="Save anyway" action=${save} onClose=${onClose}>
    <p>With the new text, and not with the old one:</p>
    <ul class="powers">${powers.map(({ text, line }) => html`<li>${text} ${line && html`<span class="note">(line ${line})</span>`}</li>`)}</ul>
    <p class="note">Save only what you wrote yourself, or have read and understood.</p>
  <//>`;
}

/** @param {{error: {message: string}, text: string, mine: string, take: () => void, save: () => Promise<void>, onClose: () => void}} props */
export function Conflict({ error, text, mine, take, save, onClose }) {
  return html`<${Confirm} title="The file has changed in the meantime" confirm="Save over it" action=${save} onClose=${onClose}>
    <p>${error.message} Nothing was saved.</p>
    ${differs("On the disk", text, mine)}
    <p><button onClick=${() => { take(); onClose(); }}>Take the text on the disk</button></p>
  <//>`;
}
