/** The page Compare runs: the steps of two runs beside each other, and what changed in the configuration between them. */
import { api, useApi } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Loading, Problem } from "../parts/alert.js";
import { Difference } from "../parts/editor.js";
import { count, duration, Moment, NOT_REPORTED, shortId } from "../parts/format.js";
import { State } from "../parts/state.js";
import { Title } from "../parts/title.js";

/**
 * @typedef {{span: number, us: number, tokens_in: number | null, tokens_out: number | null}} Side
 * @typedef {{workflow: string, node: number, occurrence: number, title: string, a: Side | null, b: Side | null,
 *   text: "same" | "changed" | null}} Step
 * @typedef {{path: string, before: string | null, after: string | null}} Change
 */

/** @param {{path: string[]}} props both runs */
export default function Compare({ path: [a, b] }) {
  const { data, error, reload } = useApi(`compare/${a}/${b}`);
  const [picked, choose] = useState(/** @type {Step | null} */ (null));
  /** @type {Step[]} */
  const steps = data?.steps ?? [];
  const chosen = steps.includes(picked) ? picked : steps.find((step) => step.text === "changed") ?? steps[0];
  return html`
    <${Title}>Compare runs<//>
    <${Problem} error=${error} retry=${reload} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`
      <${Heads} runs=${[data.a, data.b]} />
      ${steps.length ? html`<${Steps} steps=${steps} chosen=${chosen} choose=${choose} />`
        : html`<p class="note">Neither run came as far as a node.</p>`}
      ${chosen && html`<${Texts} runs=${[a, b]} step=${chosen} />`}
      <${Changes} changes=${data.configuration} />`}`;
}

/** @param {{runs: object[]}} props */
function Heads({ runs }) {
  return html`<ul class="heads">${runs.map((run, n) => html`
    <li key=${n}><span class="note">${n ? "after" : "before"}</span> <a href=${`#/runs/${run.id}`}>Run ${shortId(run.id)}</a> <${State} status=${run.status} />
      <${Moment} us=${run.started} />, ${run.ended ? duration(run.ended - run.started) : "not over"} <span class="clip">${run.question ?? ""}</span></li>`)}</ul>`;
}

const HEADERS = ["Workflow", "Node", "Occurrence", "Time before", "Time after", "Tokens before", "Tokens after", "Text"];

/** @param {{steps: Step[], chosen: Step | null, choose: (step: Step) => void}} props */
function Steps({ steps, chosen, choose }) {
  return html`
    <table class="cards steps" role="table" aria-label="Steps">
      <thead role="rowgroup"><tr role="row">${HEADERS.map((name) => html`<th role="columnheader" scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody role="rowgroup">${steps.map((step) => html`<${Row} step=${step} chosen=${step === chosen} choose=${choose}
        key=${`${step.workflow} ${step.node} ${step.occurrence}`} />`)}</tbody>
    </table>`;
}

const tokens = (side) => !side ? "-" : side.tokens_in == null && side.tokens_out == null ? NOT_REPORTED
  : `${side.tokens_in == null ? "?" : count(side.tokens_in)}/${side.tokens_out == null ? "?" : count(side.tokens_out)}`;

/** @param {{step: Step, chosen: boolean, choose: (step: Step) => void}} props */
function Row({ step, chosen, choose }) {
  const text = !step.a ? "only after" : !step.b ? "only before" : step.text ?? "not kept";
  const values = [
    step.workflow,
    html`<button type="button" class="link" aria-pressed=${chosen} onClick=${() => choose(step)}>${step.node} ${step.title}</button>`,
    step.occurrence,
    duration(step.a?.us, "-"), duration(step.b?.us, "-"),
    tokens(step.a), tokens(step.b),
    html`<span class=${step.text ?? ""}>${text}</span>`,
  ];
  return html`<tr role="row" class=${chosen && "chosen"}>${values.map((value, n) => html`<td role="cell" data-label=${HEADERS[n]} key=${n}><div>${value}</div></td>`)}</tr>`;
}

/** The texts of the chosen step in both runs. @param {{runs: string[], step: Step}} props */
function Texts({ runs, step }) {
  const [texts, setTexts] = useState(null);
  const [error, setError] = useState(null);
  const load = () => {
    let left = false;
    setTexts(null);
    setError(null);
    const ask = (side, run) => side ? api("GET", `runs/${run}/texts/${side.span}`) : Promise.resolve({});
    Promise.all([ask(step.a, runs[0]), ask(step.b, runs[1])]).then((both) => left || setTexts(both), (failure) => left || setError(failure));
    return () => {
      left = true;
    };
  };
  useEffect(load, [step]);
  const name = `${step.node} ${step.title}`;
  if (error) return html`<${Problem} error=${error} retry=${load} />`;
  if (!texts) return null;
  const kinds = [...new Set(texts.flatMap(Object.keys))];
  return html`
    <h2>Texts of ${name}</h2>
    ${kinds.length ? kinds.map((kind) => html`<h3 key=${`h ${kind}`}>${kind}</h3>
        <${Difference} key=${`${kind} ${name}`} before=${shown(texts[0][kind])} after=${shown(texts[1][kind])}
          labels=${runs.map((id) => `Run ${shortId(id)}`)} />`)
      : html`<p class="note">The texts of this step were not kept.</p>`}`;
}

/** @param {unknown} text */
const shown = (text) => text == null ? "" : typeof text === "string" ? text : JSON.stringify(text, null, 2);

/** @param {{changes: Change[]}} props */
function Changes({ changes }) {
  return html`
    <section aria-label="Configuration changes" class="changes">
      <h2>Configuration changes</h2>
      ${changes.length ? changes.map(({ path, before, after }) => html`
          <details key=${path} open=${changes.length === 1}>
            <summary>${path}${before == null ? ", new" : after == null ? ", no longer used" : ""}</summary>
            <${Difference} before=${before ?? ""} after=${after ?? ""} labels=${["Before", "After"]} language="json" />
          </details>`)
        : html`<p class="note">Both runs used the same configuration.</p>`}
    </section>`;
}
