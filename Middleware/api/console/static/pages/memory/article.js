/** One memory: its text, and what can be done with it. */
import { api } from "../../api.js";
import { html, useId, useState } from "../../html.js";
import { Problem } from "../../parts/alert.js";
import { Confirm } from "../../parts/dialog.js";
import { Folded } from "../../parts/folded.js";
import { Moment } from "../../parts/format.js";
import { navigate } from "../../routes.js";

const SINGLE = { summary: "Summary", state: "State document" };

/**
 * @param {{entry: object, part: string, base: string, where: URLSearchParams,
 *          replace: (number: number, changed: object) => void, reload: () => void}} props
 */
export function Memory({ entry, part, base, where, replace, reload }) {
  const name = SINGLE[part] ?? `Memory ${entry.number}`;
  const path = `${base}/memories/${encodeURIComponent(entry.key)}?${where}`;
  const [editing, setEditing] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const [origin, setOrigin] = useState("");
  const [problem, setProblem] = useState(null);
  const id = useId();
  const follow = async (event) => {
    event.preventDefault();
    setProblem(null);
    setOrigin("Looking …");
    try {
      const { run, span } = await api("GET", path);
      if (run) navigate(`#/runs/${encodeURIComponent(run)}?span=${span}`);
      else setOrigin("not recorded");
    } catch (failure) {
      setOrigin("");
      setProblem(failure);
    }
  };
  return html`<article class="memory" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${name}</h2>
      ${entry.title && html`<span class="about">${entry.title}</span>`}
      ${entry.date && html`<span class="quiet-text"><${Moment} us=${moment(entry.date)} none="" /></span>`}
      ${entry.summarized && html`<span class="quiet-text">in the summary</span>`}
      <span class="push"></span>
      ${origin ? html`<span class="quiet-text" role="status">${origin}</span>`
        : html`<a href=${`#/memory`} onClick=${follow}>Where it came from</a>`}
      ${!editing && html`<button type="button" class="quiet" onClick=${() => setEditing(true)}>Edit</button>`}
      ${!SINGLE[part] && html`<button type="button" class="quiet" onClick=${() => setDeleting(true)}>Delete</button>`}
    </header>
    <${Problem} error=${problem} onClose=${() => setProblem(null)} />
    ${editing ? html`<${Edit} name=${name} text=${entry.text} path=${path} onClose=${() => setEditing(false)}
        onSaved=${(text, key) => { replace(entry.number, { text, key }); setEditing(false); }} />`
      : entry.text ? html`<${Folded} text=${entry.text} />`
      : html`<p class="quiet-text">Deleted. The only memory keeps its place, so that its messages are not remembered again.</p>`}
    ${deleting && html`<${Confirm} title=${`Delete ${name.toLowerCase()}?`} confirm="Delete" onClose=${() => setDeleting(false)}
      action=${async () => { await api("DELETE", path); reload(); }}>
      <p>${entry.text.slice(0, 200)}${entry.text.length > 200 ? " …" : ""}</p>
      <p>Its messages still count as remembered, so it is not written again. ${part === "memories"
        ? html`The file as it was stays in <code>memories.json.bak</code> until the next change.` : "There is no way back."}</p><//>`}
  </article>`;
}

function Edit({ name, text, path, onClose, onSaved }) {
  const [value, setValue] = useState(text);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const id = useId();
  const save = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { key } = await api("PUT", path, { text: value });
      onSaved(value, key);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<form onSubmit=${save}>
    <label class="quiet-text" for=${id}>Text of ${name.toLowerCase()}</label>
    <textarea id=${id} rows=${Math.min(24, 2 + value.split("\n").length + Math.floor(value.length / 100))} value=${value}
      onInput=${(event) => setValue(event.currentTarget.value)}></textarea>
    <${Problem} error=${error} />
    <p class="actions"><button type="submit" class="primary" disabled=${busy || !value.trim() || value === text}>Save</button>
      <button type="button" onClick=${onClose}>Cancel</button></p>
  </form>`;
}

/** @param {string} date ISO 8601, or a date in words that a workflow wrote @returns {number | null} microseconds */
function moment(date) {
  const time = Date.parse(date);
  return Number.isNaN(time) ? null : time * 1000;
}
