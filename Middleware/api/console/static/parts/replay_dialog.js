/** The dialog Replay run: where to start, and which nodes may act again. */
import { api, url, useApi } from "../api.js";
import { html, useState } from "../html.js";
import { Check, Choice, Confirm, Loaded } from "./elements.js";
import { navigate } from "../routes.js";

/**
 * @typedef {{workflow: string, node: number, occurrence: number, title: string, type: string,
 *   acts: "no" | "reads" | "writes" | "outside", recorded: boolean, name: string, stands_in: boolean}} ReplayNode
 * `workflow`: the names from the outermost workflow inwards; `stands_in`: it answers from the recording unless it is told to run
 */

const ACTS = { reads: "reads what is stored", writes: "writes what is stored", outside: "reaches something outside" };

/** @param {{run: {id: string}, onClose: () => void}} props */
export function ReplayDialog({ run, onClose }) {
  const path = url`runs/${run.id}/replay`;
  const possible = useApi(path);
  /** @type {ReplayNode[]} */
  const nodes = possible.data?.nodes ?? [];
  const [fromNode, setFromNode] = useState(false);
  const [at, setAt] = useState(0);
  const [also, setAlso] = useState(/** @type {string[]} */ ([]));
  const start = async () => {
    const { workflow, node, occurrence } = nodes[at] ?? {};
    const { id } = await api("POST", path, { from: fromNode ? { workflow, node, occurrence } : null, also });
    navigate(url`#/runs/${id}`);
  };
  const option = ({ workflow, node, title, occurrence }, n) => [String(n), `${workflow}, ${node} ${title}${occurrence > 1 ? `, time ${occurrence}` : ""}`];
  const acting = [...new Map(nodes.filter((node) => node.stands_in).map((node) => [node.name, node])).values()];
  const form = () => html`
    <fieldset><legend>Start</legend>
      <div class="line"><${Check} type="radio" name="from" label="From the beginning" checked=${!fromNode} onChange=${() => setFromNode(false)} /></div>
      <div class="line">
        <${Check} type="radio" name="from" label="From a node" checked=${fromNode} disabled=${!nodes.length} onChange=${() => setFromNode(true)} />
        <${Choice} label="Start at" value=${String(at)} disabled=${!fromNode} options=${nodes.map(option)} onChange=${(n) => setAt(Number(n))} />
      </div>
    </fieldset>
    ${acting.length > 0 && html`<fieldset><legend>Also run</legend>${acting.map(({ name, type, acts, recorded }) => html`<div key=${name} class="line">
      <${Check} label=${name} checked=${also.includes(name)} onChange=${(on) => setAlso(on ? [...also, name] : also.filter((one) => one !== name))} />
      <span class="note">${type}${ACTS[acts] && `, ${ACTS[acts]}`}${!recorded
        && html`; <strong>was not recorded, so the replay stops there without it</strong>`}</span></div>`)}</fieldset>`}`;
  return html`<${Confirm} title="Replay run" confirm="Start" look="primary" disabled=${!possible.data} action=${start} onClose=${onClose}>
    <p class="note">The recorded request runs through today's configuration. LLM calls are real; nodes that read, write or reach out answer from the recording, and no client is answered.</p>
    <${Loaded} from=${possible}>${form}<//><//>`;
}
