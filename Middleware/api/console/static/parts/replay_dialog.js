/** The dialog Replay run: where to start, and which nodes may act again. */
import { api, useApi } from "../api.js";
import { html, useState } from "../html.js";
import { navigate } from "../routes.js";
import { Loading, Problem } from "./alert.js";
import { Dialog } from "./dialog.js";
import { Check, Choice } from "./fields.js";

/**
 * @typedef {{workflow: string, node: number, occurrence: number, title: string, type: string,
 *   acts: "no" | "reads" | "writes" | "outside", recorded: boolean, name: string, stands_in: boolean}} ReplayNode
 * `workflow`: the names from the outermost workflow inwards; `stands_in`: it answers from the recording unless it is told to run
 */

const ACTS = { reads: "reads what is stored", writes: "writes what is stored", outside: "reaches something outside" };

/** @param {{run: {id: string}, onClose: () => void}} props */
export function ReplayDialog({ run, onClose }) {
  const { data, error, reload } = useApi(`runs/${run.id}/replay`);
  return html`
    <${Dialog} title="Replay run" onClose=${onClose}>
      <p class="note">The recorded request runs through today's configuration. LLM calls are real; nodes that read, write or reach out answer from the recording, and no client is answered.</p>
      <${Problem} error=${error} retry=${reload} />
      ${!data && !error && html`<${Loading} />`}
      ${data && html`<${Form} run=${run} nodes=${data.nodes} onClose=${onClose} />`}
    <//>`;
}

/** @param {{run: {id: string}, nodes: ReplayNode[], onClose: () => void}} props */
function Form({ run, nodes, onClose }) {
  const [from, setFrom] = useState("beginning");
  const [at, setAt] = useState(0);
  const [also, setAlso] = useState(/** @type {string[]} */ ([]));
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const start = async () => {
    setBusy(true);
    setError(null);
    const { workflow, node, occurrence } = nodes[at] ?? {};
    try {
      const { id } = await api("POST", `runs/${run.id}/replay`, { from: from === "beginning" ? null : { workflow, node, occurrence }, also });
      onClose();
      navigate(`#/runs/${id}`);
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`
    <form onSubmit=${(event) => (event.preventDefault(), start())}>
      <fieldset><legend>Start</legend>
        <label class="check line"><input type="radio" name="from" checked=${from === "beginning"} onChange=${() => setFrom("beginning")} /> From the beginning</label>
        <div class="line">
          <label class="check"><input type="radio" name="from" checked=${from === "node"} disabled=${!nodes.length} onChange=${() => setFrom("node")} /> From a node</label>
        <${Choice} label="Start at" value=${String(at)} disabled=${from !== "node"} options=${nodes.map(option)} onChange=${(n) => setAt(Number(n))} />
        </div>
      </fieldset>
      <${AlsoRun} nodes=${nodes} also=${also} change=${setAlso} />
      <${Problem} error=${error} retry=${start} />
      <p class="actions">
        <button type="submit" class="primary" disabled=${busy}>Start</button>
        <button type="button" onClick=${onClose}>Cancel</button>
      </p>
    </form>`;
}

/** @param {ReplayNode} node @param {number} n @returns {[string, string]} */
const option = ({ workflow, node, title, occurrence }, n) => [String(n), `${workflow}, ${node} ${title}${occurrence > 1 ? `, time ${occurrence}` : ""}`];

/** @param {{nodes: ReplayNode[], also: string[], change: (also: string[]) => void}} props */
function AlsoRun({ nodes, also, change }) {
  const acting = [...new Map(nodes.filter((node) => node.stands_in).map((node) => [node.name, node])).values()];
  if (!acting.length) return null;
  const set = (name, on) => change(on ? [...also, name] : also.filter((one) => one !== name));
  return html`
    <fieldset><legend>Also run</legend>
      ${acting.map(({ name, type, acts, recorded }) => html`<div key=${name} class="line">
        <${Check} label=${name} checked=${also.includes(name)} onChange=${(on) => set(name, on)} />
        <span class="note">${type}${ACTS[acts] && `, ${ACTS[acts]}`}${!recorded && html`; <strong>was not recorded, so the replay stops there without it</strong>`}</span>
      </div>`)}
    </fieldset>`;
}
