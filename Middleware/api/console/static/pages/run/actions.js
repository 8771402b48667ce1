/** What can be done with a run. */
import { api, request } from "../../api.js";
import { html, useRef, useState } from "../../html.js";
import { CompareChoice } from "../../parts/compare_choice.js";
import { Confirm, Dialog } from "../../parts/dialog.js";
import { Problem } from "../../parts/alert.js";
import { download } from "../../parts/folded.js";
import { shortId } from "../../parts/format.js";
import { ReplayDialog } from "../../parts/replay_dialog.js";
import { isUnfinished } from "../../parts/run_data.js";
import { hasPage, navigate } from "../../routes.js";
import { hasTexts } from "./texts.js";

/**
 * @param {{run: object, reload: () => void, onProblem: (error: Error | null) => void}} props
 */
export function RunActions({ run, reload, onProblem }) {
  const [open, setOpen] = useState("");
  const close = () => setOpen("");
  const path = `runs/${encodeURIComponent(run.id)}`;
  const call = async (method, address, body) => {
    try {
      await api(method, address, body);
      onProblem(null);
      reload();
    } catch (error) {
      onProblem(error);
    }
  };
  const remove = async () => {
    await api("DELETE", path);
    navigate("#/runs");
  };
  const running = isUnfinished(run.status);
  return html`<${Toolbar} label="Run actions">
    ${running && html`<button type="button" class="danger" onClick=${() => call("POST", `${path}/stop`, {})}>Stop</button>`}
    ${hasPage("compare/*/*") && html`<button type="button" disabled=${running} onClick=${() => setOpen("replay")}>Replay</button>`}
    ${hasPage("runs/*/test") && html`<button type="button" disabled=${running} onClick=${() => navigate(`#/${path}/test`)}>Make a test</button>`}
    ${run.origin && hasPage("compare/*/*") && html`<button type="button"
      onClick=${() => navigate(`#/compare/${encodeURIComponent(run.origin.run)}/${encodeURIComponent(run.id)}`)}>Compare with the original</button>`}
    ${hasPage("compare/*/*") && html`<button type="button" onClick=${() => setOpen("compare")}>Compare with...</button>`}
    <button type="button" onClick=${() => setOpen("export")}>Export</button>
    <button type="button" disabled=${running} onClick=${() => call("PUT", path, { pinned: !run.pinned })}>${run.pinned ? "Unpin" : "Pin"}</button>
    <button type="button" disabled=${running} onClick=${() => setOpen("delete")}>Delete</button>
    ${open === "replay" && html`<${ReplayDialog} run=${run} onClose=${close} />`}
    ${open === "compare" && html`<${CompareChoice} run=${run} onClose=${close} />`}
    ${open === "export" && html`<${Export} run=${run} path=${path} onClose=${close} />`}
    ${open === "delete" && html`<${Confirm} title=${`Delete run ${shortId(run.id)}?`} confirm="Delete run" action=${remove} onClose=${close}>
      <p>Its facts, prompts and answers are deleted from this server's memory and disk.${run.pinned ? " It is pinned." : ""}
        There is no way back.</p><//>`}
  <//>`;
}

/** A toolbar by the ARIA pattern: one stop of the tabulator key, arrow keys inside. */
function Toolbar({ label, children }) {
  const bar = useRef(null);
  const buttons = () => [...bar.current.querySelectorAll(":scope > button:not(:disabled)")];
  const onKeyDown = (event) => {
    const all = buttons();
    const at = all.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    all.at(next % all.length).focus();
  };
  return html`<div class="toolbar" role="toolbar" aria-label=${label} ref=${bar} onKeyDown=${onKeyDown}>${children}</div>`;
}

function Export({ run, path, onClose }) {
  const [texts, setTexts] = useState(false);
  const [error, setError] = useState(null);
  const save = async () => {
    try {
      const answer = await request(`${path}/export?texts=${texts ? 1 : 0}`);
      download(`run-${shortId(run.id)}.json`, await answer.text());
      onClose();
    } catch (problem) {
      setError(problem);
    }
  };
  const choice = (value, label, note, disabled = false) => html`<p><label class="check"><input type="radio" name="texts"
    checked=${texts === value} disabled=${disabled} onChange=${() => setTexts(value)} /> ${label}</label><br /><span class="note">${note}</span></p>`;
  return html`<${Dialog} title="Export run" onClose=${onClose}>
    ${choice(false, "Without texts", "Times, counts and names alone: it can be shown to anybody.")}
    ${choice(true, "With texts", hasTexts(run) ? "Prompts and answers, too." : "The texts of this run were not kept.", !hasTexts(run))}
    <p class="note">The file can be opened on the page Runs of any console.</p>
    <${Problem} error=${error} />
    <p class="actions"><button type="button" class="primary" onClick=${save}>Export</button>
      <button type="button" onClick=${onClose}>Cancel</button></p><//>`;
}
