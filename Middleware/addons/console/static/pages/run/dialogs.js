/** The dialogs of a run: Replay, Compare with, Export, Delete. */
import { api, request, url, useApi } from "../../api.js";
import { html, useState } from "../../html.js";
import { Check, Choice, Confirm, Dialog, Loaded, State } from "../../parts/elements.js";
import { download } from "../../parts/folded.js";
import { Moment, shortId } from "../../parts/format.js";
import { navigate } from "../../routes.js";
import { hasTexts } from "./texts.js";

/**
 * @typedef {{workflow: string, node: number, occurrence: number, title: string, type: string,
 *   acts: "no" | "reads" | "writes" | "outside", recorded: boolean, name: string, stands_in: boolean}} ReplayNode
 * `workflow`: the names from the outermost workflow inwards; `stands_in`: it answers from the recording unless it is told to run
 */

const ACTS = { reads: "reads what is stored", writes: "writes what is stored", outside: "reaches something outside" };

/** @param {{path: string, onClose: () => void}} props `path`: of the run, in the API and on the pages */
export function Replay({ path, onClose }) {
  const possible = useApi(`${path}/replay`);
  const nodes = possible.data?.nodes ?? [];
  const [fromNode, setFromNode] = useState(false);
  const [at, setAt] = useState(0);
  const [also, setAlso] = useState([]);
  const start = async () => {
    const { workflow, node, occurrence } = nodes[at] ?? {};
    const { id } = await api("POST", `${path}/replay`, { from: fromNode ? { workflow, node, occurrence } : null, also });
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

/** Which run one is compared with: the newest ones of its workflow. */
export function Compare({ run, onClose }) {
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

export function Delete({ run, path, onClose }) {
  const remove = () => api("DELETE", path).then(() => navigate("#/runs"));
  return html`<${Confirm} title=${`Delete run ${shortId(run.id)}?`} confirm="Delete run" action=${remove} onClose=${onClose}>
    <p>Its facts, prompts and answers are deleted from this server's memory and disk.${run.pinned ? " It is pinned." : ""}
      There is no way back.</p><//>`;
}

export function Export({ run, path, onClose }) {
  const [texts, setTexts] = useState(0);
  const save = async () => download(`run-${shortId(run.id)}.json`, await (await request(`${path}/export?texts=${texts}`)).text());
  const choice = (value, label, note, disabled = false) => html`<p><${Check} type="radio" name="texts" label=${label} checked=${texts === value}
    disabled=${disabled} onChange=${() => setTexts(value)} /><br /><span class="note">${note}</span></p>`;
  return html`<${Confirm} title="Export run" confirm="Export" look="primary" action=${save} onClose=${onClose}>
    ${choice(0, "Without texts", "Times, counts and names alone: it can be shown to anybody.")}
    ${choice(1, "With texts", hasTexts(run) ? "Prompts and answers, too." : "The texts of this run were not kept.", !hasTexts(run))}
    <p class="note">The file can be opened on the page Runs of any console.</p><//>`;
}
