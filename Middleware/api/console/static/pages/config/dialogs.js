/** The dialogs of the page Configuration: older versions, a conflict, and what a change lets the server do. */
import { api, useApi } from "../../api.js";
import { html, useState } from "../../html.js";
import { Difference } from "../../parts/editor.js";
import { Dialog, Loading, Problem } from "../../parts/elements.js";
import { bytes, Moment } from "../../parts/format.js";

/** @param {{path: string, shown: string, restore: (text: string) => void, onClose: () => void}} props */
export function History({ path, shown, restore, onClose }) {
  const address = `config/history?path=${encodeURIComponent(path)}`;
  const { data, error, reload } = useApi(address);
  const [chosen, setChosen] = useState(/** @type {{at: number, text: string} | null} */ (null));
  const [problem, setProblem] = useState(null);
  const read = async (at) => {
    setProblem(null);
    try {
      return (await api("GET", `${address}&version=${at}`)).text;
    } catch (failure) {
      setProblem(failure);
      return null;
    }
  };
  const show = async (at) => {
    const text = await read(at);
    if (text !== null) setChosen({ at, text });
  };
  const take = async (at) => {
    const text = chosen?.at === at ? chosen.text : await read(at);
    if (text !== null) restore(text);
  };
  return html`<${Dialog} title="History" onClose=${onClose}>
    <p class="mono">${path}</p>
    <${Problem} error=${error} retry=${reload} />
    <${Problem} error=${problem} />
    ${!data && !error && html`<${Loading} />`}
    ${data?.versions.length === 0 && html`<p class="note">The console has not saved this file yet. Each save keeps what it replaces.</p>`}
    <ul class="versions">${data?.versions.map(({ at, size }) => html`<li key=${at}>
      <span>until <${Moment} us=${at} /></span> <span class="quiet-text num">${bytes(size)}</span>
      <button type="button" aria-pressed=${String(chosen?.at === at)} onClick=${() => show(at)}>Show the difference</button>
      <button type="button" onClick=${() => take(at)}>Restore</button></li>`)}</ul>
    ${chosen && html`<${Difference} before=${chosen.text} after=${shown} labels=${["Older version", "In the editor"]} language="json" />`}
    <p class="note">Restore puts the older text into the editor, where it can be looked at and saved.</p>
    <p class="actions"><button type="button" onClick=${onClose}>Close</button></p>
  <//>`;
}

/** @param {{problem: import("../../api.js").ApiError, save: () => Promise<void>, onClose: () => void}} props */
export function MorePowers({ problem, save, onClose }) {
  return html`<${Dialog} title="This change lets the server do more" onClose=${onClose}>
    <p>With the new text, and not with the old one:</p>
    <ul class="powers">${problem.body.powers.map((power, n) => html`<li key=${n}>${power.text}${power.line ? html` <span class="quiet-text">(line ${power.line})</span>` : ""}</li>`)}</ul>
    <p class="note">Save only what you wrote yourself, or have read and understood.</p>
    <p class="actions"><button type="button" class="danger" onClick=${save}>Save anyway</button>
      <button type="button" onClick=${onClose}>Cancel</button></p>
  <//>`;
}

/** @param {{problem: import("../../api.js").ApiError, mine: string, take: () => void, save: () => void, onClose: () => void}} props */
export function Conflict({ problem, mine, take, save, onClose }) {
  return html`<${Dialog} title="The file has changed meanwhile" onClose=${onClose}>
    <p>${problem.message} Nothing was saved.</p>
    <${Difference} before=${problem.body.text} after=${mine} labels=${["On the disk", "In the editor"]} language="json" />
    <p class="actions"><button type="button" onClick=${take}>Take the text on the disk</button>
      <button type="button" class="danger" onClick=${save}>Save over it</button>
      <button type="button" onClick=${onClose}>Cancel</button></p>
  <//>`;
}
