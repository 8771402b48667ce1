/** The page Compare runs: the steps of two runs next to each other, and what changed in the configuration between them. */
import { url, useApi } from "../api.js";
import { html, useState } from "../html.js";
import { Difference } from "../parts/editor.js";
import { Loaded, Problem, State, Table, Title } from "../parts/elements.js";
import { asText, count, duration, Moment, NOT_REPORTED, shortId } from "../parts/format.js";

/**
 * @typedef {{span: number, us: number, tokens_in: number | null, tokens_out: number | null}} Side
 * @typedef {{workflow: string, node: number, occurrence: number, title: string, a: Side | null, b: Side | null,
 *   text: "same" | "changed" | null}} Step
 * @typedef {{path: string, change: "changed" | "new" | "unused", before?: string | null, after?: string | null}} Change
 */

/** @param {{path: string[]}} props both runs */
export default function Compare({ path: [a, b] }) {
  const [picked, choose] = useState(null);
  const compared = (data) => {
    /** @type {Step[]} */
    const steps = data.steps;
    const chosen = steps.includes(picked) ? picked : steps.find((step) => step.text === "changed") ?? steps[0];
    return html`
      <ul class="heads">${[data.a, data.b].map((run, n) => html`<li>
        <span class="note">${n ? "after" : "before"}</span> <a href=${url`#/runs/${run.id}`}>Run ${shortId(run.id)}</a> <${State} status=${run.status} />${" "}
        <${Moment} us=${run.started} />, ${run.ended ? duration(run.ended - run.started) : "not over"} <span class="clip">${run.question}</span></li>`)}</ul>
      ${steps.length ? html`<${Table} label="Steps" look="steps" rows=${steps} columns=${columns(chosen, choose)} lookOf=${(step) => step === chosen && "chosen"} />
        <${Texts} runs=${[a, b]} step=${chosen} />`
        : html`<p class="note">Neither run came as far as a node.</p>`}
      <${Changes} changes=${data.configuration} />`;
  };
  return html`<${Title}>Compare runs<//><${Loaded} from=${useApi(url`compare/${a}/${b}`)}>${compared}<//>`;
}

const tokens = (side) => !side ? "-" : side.tokens_in == null && side.tokens_out == null ? NOT_REPORTED
  : `${count(side.tokens_in, "?")}/${count(side.tokens_out, "?")}`;

const columns = (chosen, choose) => ({
  Workflow: (step) => step.workflow,
  Node: (step) => html`<button class="link" aria-pressed=${step === chosen} onClick=${() => choose(step)}>${step.node} ${step.title}</button>`,
  Occurrence: (step) => step.occurrence,
  "Time before": ({ a }) => duration(a?.us, "-"),
  "Time after": ({ b }) => duration(b?.us, "-"),
  "Tokens before": ({ a }) => tokens(a),
  "Tokens after": ({ b }) => tokens(b),
  Text: ({ a, b, text }) => html`<span class=${text}>${!a ? "only after" : !b ? "only before" : text ?? "not kept"}</span>`,
});

/** The texts of the chosen step in both runs. @param {{runs: string[], step: Step}} props */
function Texts({ runs, step }) {
  const asked = [step.a, step.b].map((side, n) => useApi(side ? url`runs/${runs[n]}/texts/${side.span}` : null));
  const failed = asked.find(({ error }) => error);
  // A run that has no such step has no texts of it.
  const texts = asked.map(({ data }, n) => data ?? (step[n ? "b" : "a"] ? null : {}));
  if (failed || texts.includes(null)) return html`<${Problem} error=${failed?.error} retry=${failed?.reload} />`;
  const name = `${step.node} ${step.title}`;
  const kinds = [...new Set(texts.flatMap(Object.keys))];
  return html`
    <h2>Texts of ${name}</h2>
    ${kinds.length ? kinds.map((kind) => html`<h3 key=${`h ${kind}`}>${kind}</h3>
        <${Difference} key=${`${kind} ${name}`} before=${asText(texts[0][kind])} after=${asText(texts[1][kind])}
          labels=${runs.map((id) => `Run ${shortId(id)}`)} />`)
      : html`<p class="note">The texts of this step were not kept.</p>`}`;
}

const CHANGES = { changed: "", new: ", new", unused: ", no longer used" };

/** Only an operator gets the texts of files. @param {{changes: Change[]}} props */
function Changes({ changes }) {
  return html`
    <section aria-label="Configuration changes" class="changes">
      <h2>Configuration changes</h2>
      ${changes.length ? changes.map(({ path, change, before, after }) => before === undefined
          ? html`<p key=${path}>${path}${CHANGES[change]}</p>` : html`
          <details key=${path} open=${changes.length === 1}>
            <summary>${path}${CHANGES[change]}</summary>
            <${Difference} before=${before ?? ""} after=${after ?? ""} labels=${["Before", "After"]} language="json" />
          </details>`)
        : html`<p class="note">Both runs used the same configuration.</p>`}
    </section>`;
}
