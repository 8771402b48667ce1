/** What can be done with a run. */
import { api, request, url, useAction } from "../../api.js";
import { html, useState } from "../../html.js";
import { CompareChoice } from "../../parts/compare_choice.js";
import { Check, Confirm, isUnfinished, Problem, Toolbar } from "../../parts/elements.js";
import { download } from "../../parts/folded.js";
import { shortId } from "../../parts/format.js";
import { ReplayDialog } from "../../parts/replay_dialog.js";
import { navigate } from "../../routes.js";
import { hasTexts } from "./texts.js";

const DIALOGS = { replay: ReplayDialog, compare: CompareChoice, export: Export, delete: Delete };

/** @param {{run: object, reload: () => void}} props */
export function RunActions({ run, reload }) {
  const [open, setOpen] = useState("");
  const path = url`runs/${run.id}`;
  const changing = useAction((method, address, body) => api(method, address, body).then(reload));
  const running = isUnfinished(run.status);
  const opener = (label, dialog, disabled = running) => html`<button disabled=${disabled} onClick=${() => setOpen(dialog)}>${label}</button>`;
  return html`<${Toolbar} label="Run actions">
    ${running && html`<button class="danger" onClick=${() => changing.run("POST", `${path}/stop`, {})}>Stop</button>`}
    ${opener("Replay", "replay")}
    <button disabled=${running} onClick=${() => navigate(`#/${path}/test`)}>Make a test</button>
    ${run.origin && html`<button onClick=${() => navigate(url`#/compare/${run.origin.run}/${run.id}`)}>Compare with the original</button>`}
    ${opener("Compare with...", "compare", false)}
    ${opener("Export", "export", false)}
    <button disabled=${running} onClick=${() => changing.run("PUT", path, { pinned: !run.pinned })}>${run.pinned ? "Unpin" : "Pin"}</button>
    ${opener("Delete", "delete")}
    ${open && html`<${DIALOGS[open]} run=${run} path=${path} onClose=${() => setOpen("")} />`}
  <//>
  <${Problem} ...${changing} />`;
}

function Delete({ run, path, onClose }) {
  const remove = () => api("DELETE", path).then(() => navigate("#/runs"));
  return html`<${Confirm} title=${`Delete run ${shortId(run.id)}?`} confirm="Delete run" action=${remove} onClose=${onClose}>
    <p>Its facts, prompts and answers are deleted from this server's memory and disk.${run.pinned ? " It is pinned." : ""}
      There is no way back.</p><//>`;
}

function Export({ run, path, onClose }) {
  const [texts, setTexts] = useState(0);
  const save = async () => download(`run-${shortId(run.id)}.json`, await (await request(`${path}/export?texts=${texts}`)).text());
  const choice = (value, label, note, disabled = false) => html`<p><${Check} type="radio" name="texts" label=${label} checked=${texts === value}
    disabled=${disabled} onChange=${() => setTexts(value)} /><br /><span class="note">${note}</span></p>`;
  return html`<${Confirm} title="Export run" confirm="Export" look="primary" action=${save} onClose=${onClose}>
    ${choice(0, "Without texts", "Times, counts and names alone: it can be shown to anybody.")}
    ${choice(1, "With texts", hasTexts(run) ? "Prompts and answers, too." : "The texts of this run were not kept.", !hasTexts(run))}
    <p class="note">The file can be opened on the page Runs of any console.</p><//>`;
}
