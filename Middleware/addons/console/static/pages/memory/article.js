/** One memory: its text, and what can be done with it. */
import { api, url, useAction } from "../../api.js";
import { html, instead, useId, useState } from "../../html.js";
import { Area, Check, Confirm, Problem } from "../../parts/elements.js";
import { Folded } from "../../parts/folded.js";
import { Moment } from "../../parts/format.js";
import { navigate } from "../../routes.js";

const SINGLE = { summary: "Summary", state: "State document" };

export function Memory({ entry, part, base, where, replace, reload }) {
  const said = part === "messages";
  const name = SINGLE[part] ?? `${said ? "Message" : "Memory"} ${entry.number}`;
  const path = `${base}/${url`memories/${entry.key}`}?${where}`;
  const [open, setOpen] = useState("");
  const [unknown, setUnknown] = useState(false);
  const id = useId();
  const close = () => setOpen("");
  const looking = useAction(async () => {
    const { run, span } = await api("GET", path);
    if (run) navigate(url`#/runs/${run}?span=${span}`);
    else setUnknown(true);
  });
  const origin = looking.busy ? "Looking …" : unknown ? "not recorded" : "";
  const date = entry.date && Date.parse(entry.date);
  return html`<article class="memory" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${name}</h2>
      <span class="about">${entry.title}</span>
      ${/* A workflow may have written a date in words. */ date > 0 && html`<span class="note"><${Moment} us=${date * 1000} /></span>`}
      ${entry.state && html`<span class="note">${entry.state}</span>`}
      ${entry.summarized && html`<span class="note">in the summary</span>`}
      <span class="push"></span>
      ${origin ? html`<span class="note" role="status">${origin}</span>`
        : !said && html`<a href="#/memory" onClick=${instead(looking.run)}>Where it came from</a>`}
      ${open !== "edit" && !said && html`<button class="quiet" onClick=${() => setOpen("edit")}>Edit</button>`}
      ${!SINGLE[part] && html`<button class="quiet" onClick=${() => setOpen("delete")}>Delete</button>`}
    </header>
    <${Problem} ...${looking} />
    ${open === "edit" ? html`<${Edit} name=${name} text=${entry.text} path=${path} onClose=${close} hasBackup=${part !== "searchable"}
        onSaved=${(changed) => { replace(entry.number, changed); close(); }} />`
      : entry.text ? html`<${Folded} text=${entry.text} />`
      : html`<p class="note">Deleted. The only memory keeps its place, so that its messages are not remembered again.</p>`}
    ${open === "delete" && html`<${Confirm} title=${`Delete ${name.toLowerCase()}?`} confirm="Delete" onClose=${close}
      action=${() => api("DELETE", path).then(reload)}>
      <p>${entry.text.slice(0, 200)}${entry.text.length > 200 ? " …" : ""}</p>
      <p>${said ? "It is erased with the memories that were made of it, and is not stored again while the front-end still sends it."
        : "Its messages still count as remembered, so it is not written again."} There is no way back.</p><//>`}
  </article>`;
}

function Edit({ name, text, path, hasBackup, onClose, onSaved }) {
  const [value, setValue] = useState(text);
  const [wording, setWording] = useState(false);
  const saving = useAction(async () => onSaved({ text: value, key: (await api("PUT", path, { text: value, wording: wording || undefined })).key }));
  return html`<form onSubmit=${instead(saving.run)}>
    <${Area} label=${`Text of ${name.toLowerCase()}`} value=${value} onChange=${setValue}
      rows=${Math.min(24, 2 + value.split("\n").length + Math.floor(value.length / 100))} />
    ${hasBackup && html`<p><${Check} label="Forget the old wording" checked=${wording} onChange=${setWording} /></p>`}
    <${Problem} error=${saving.error} />
    <p class="actions"><button type="submit" class="primary" disabled=${saving.busy || !value.trim() || value === text}>Save</button>
      <button onClick=${onClose}>Cancel</button></p>
  </form>`;
}
