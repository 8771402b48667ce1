/** What can be done with a run. */
import { api, url, useAction } from "../../api.js";
import { html, useState } from "../../html.js";
import { isUnfinished, Problem, Toolbar } from "../../parts/elements.js";
import { navigate } from "../../routes.js";
import { Compare, Delete, Export, Replay } from "./dialogs.js";

export function RunActions({ run, reload }) {
  const [open, setOpen] = useState(/** @type {{dialog: Function} | null} */ (null));
  const path = url`runs/${run.id}`;
  const changing = useAction((method, address, body) => api(method, address, body).then(reload));
  const running = isUnfinished(run.status);
  const opener = (label, dialog, disabled = running) => html`<button disabled=${disabled} onClick=${() => setOpen({ dialog })}>${label}</button>`;
  return html`<${Toolbar} label="Run actions">
    ${running && html`<button class="danger" onClick=${() => changing.run("POST", `${path}/stop`, {})}>Stop</button>`}
    ${opener("Replay", Replay)}
    <button disabled=${running} onClick=${() => navigate(`#/${path}/test`)}>Make a test</button>
    ${run.origin && html`<button onClick=${() => navigate(url`#/compare/${run.origin.run}/${run.id}`)}>Compare with the original</button>`}
    ${opener("Compare with...", Compare, false)}
    ${opener("Export", Export, false)}
    ${run.changeable !== false && html`<button disabled=${running} onClick=${() => changing.run("PUT", path, { pinned: !run.pinned })}>${run.pinned ? "Unpin" : "Pin"}</button>
      ${opener("Delete", Delete)}`}
    ${open && html`<${open.dialog} run=${run} path=${path} onClose=${() => setOpen(null)} />`}
  <//>
  <${Problem} ...${changing} />`;
}
