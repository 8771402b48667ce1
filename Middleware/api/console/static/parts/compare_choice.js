/** The dialog that asks with which run one is compared: the newest ones of its workflow. */
import { useApi } from "../api.js";
import { html } from "../html.js";
import { navigate } from "../routes.js";
import { Problem } from "./alert.js";
import { Dialog } from "./dialog.js";
import { Moment, shortId } from "./format.js";
import { State } from "./state.js";

/** @param {{run: {id: string, workflow: string | null}, onClose: () => void}} props */
export function CompareChoice({ run, onClose }) {
  const query = new URLSearchParams({ limit: "50", ...run.workflow && { workflow: run.workflow } });
  const { data, error, reload } = useApi(`runs?${query}`);
  const others = (data?.runs ?? []).filter(({ id }) => id !== run.id);
  // The older of two stands on the left.
  const open = (other) => {
    onClose();
    navigate(other.started < run.started ? `#/compare/${other.id}/${run.id}` : `#/compare/${run.id}/${other.id}`);
  };
  return html`
    <${Dialog} title="Compare with" onClose=${onClose}>
      <${Problem} error=${error} retry=${reload} />
      ${data && !others.length && html`<p class="note">There is no other run of ${run.workflow ?? "this kind"}. A replay makes one.</p>`}
      <ul class="choices">${others.map((other) => html`
        <li key=${other.id}><button type="button" class="link" onClick=${() => open(other)}>Run ${shortId(other.id)}</button>
          <${Moment} us=${other.started} /> <${State} status=${other.status} /> <span class="clip">${other.question ?? ""}</span></li>`)}</ul>
      <p class="actions"><button type="button" onClick=${onClose}>Cancel</button></p>
    <//>`;
}
