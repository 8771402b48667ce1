/** The dialog that asks with which run one is compared: the newest ones of its workflow. */
import { url, useApi } from "../api.js";
import { html } from "../html.js";
import { navigate } from "../routes.js";
import { Dialog, Loaded, State } from "./elements.js";
import { Moment, shortId } from "./format.js";

/** @param {{run: {id: string, workflow: string | null}, onClose: () => void}} props */
export function CompareChoice({ run, onClose }) {
  const newest = useApi(run.workflow ? url`runs?limit=50&workflow=${run.workflow}` : "runs?limit=50");
  // The older of two stands on the left.
  const open = (other) => {
    onClose();
    navigate(other.started < run.started ? url`#/compare/${other.id}/${run.id}` : url`#/compare/${run.id}/${other.id}`);
  };
  const choices = ({ runs }) => {
    const others = runs.filter(({ id }) => id !== run.id);
    return others.length ? html`<ul class="choices">${others.map((other) => html`<li key=${other.id}>
      <button class="link" onClick=${() => open(other)}>Run ${shortId(other.id)}</button>
      <${Moment} us=${other.started} /> <${State} status=${other.status} /> <span class="clip">${other.question}</span></li>`)}</ul>`
      : html`<p class="note">There is no other run of ${run.workflow ?? "this kind"}. A replay makes one.</p>`;
  };
  return html`<${Dialog} title="Compare with" onClose=${onClose}>
    <${Loaded} from=${newest}>${choices}<//>
    <p class="actions"><button onClick=${onClose}>Cancel</button></p>
  <//>`;
}
