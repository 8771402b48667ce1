/** The page Try again: one recorded call, edited and sent straight to an endpoint. */
import { api, stream, useApi } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Loading, Problem } from "../parts/alert.js";
import { Area } from "../parts/area.js";
import { Difference } from "../parts/editor.js";
import { Choice, Field } from "../parts/fields.js";
import { count, duration, shortId } from "../parts/format.js";
import { Title } from "../parts/title.js";

/**
 * @typedef {{text: string, reasoning: string, us: number | null, first_token_us: number | null, tokens_in: number | null,
 *   tokens_out: number | null, speed: number | null, error?: string | null}} Answer
 * @typedef {{role: string, content: string}} Message
 * @typedef {{messages: Message[], endpoint: string, preset: string | null, max_tokens: number | null, endpoints: string[],
 *   presets: string[], recorded: Answer}} Call
 */

/** @param {{path: string[]}} props run and span */
export default function Again({ path: [id, span] }) {
  const address = `runs/${id}/again/${span}`;
  /** @type {{data: Call | null, error: Error | null, reload: () => void}} */
  const { data: call, error, reload } = useApi(address);
  return html`
    <${Title}>Try again<//>
    <p class="note">A call of <a href=${`#/runs/${id}`}>run ${shortId(id)}</a>, sent to an endpoint as it stands here. No workflow runs, and nothing is remembered.</p>
    <${Problem} error=${error} retry=${reload} />
    ${!call && !error && html`<${Loading} />`}
    ${call && html`<${Desk} call=${call} address=${address} key=${address} />`}`;
}

/** @param {{call: Call, address: string}} props */
function Desk({ call, address }) {
  const [edited, setEdited] = useState({ ...call, times: 1 });
  const [answers, setAnswers] = useState(/** @type {Answer[]} */ ([]));
  const [run, setRun] = useState("");
  const [error, setError] = useState(null);
  const sending = useRef(/** @type {AbortController | null} */ (null));
  const [busy, setBusy] = useState(false);
  useEffect(() => () => sending.current?.abort(), []);
  const send = async () => {
    const control = sending.current = new AbortController();
    setBusy(true);
    setError(null);
    setRun("");
    setAnswers([]);
    try {
      await receive(address, edited, control.signal, setRun, setAnswers);
    } catch (failure) {
      if (!control.signal.aborted) setError(failure);
    }
    setBusy(false);
  };
  return html`
    <div class="pair">
      <form aria-label="Call" onSubmit=${(event) => (event.preventDefault(), send())}>
        <${Messages} messages=${edited.messages} change=${(messages) => setEdited({ ...edited, messages })} />
        <${Settings} call=${edited} change=${(values) => setEdited({ ...edited, ...values })} />
        <p class="actions">
          <button type="submit" class="primary" disabled=${busy}>Send</button>
          <button type="button" disabled=${!busy} onClick=${() => sending.current?.abort()}>Stop</button>
          <button type="button" disabled=${busy} onClick=${() => setEdited({ ...call, times: 1 })}>As recorded</button>
          ${run && html`<a href=${`#/runs/${run}`}>Open run</a>`}
        </p>
        <${Problem} error=${error} retry=${send} />
      </form>
      <div><${Results} recorded=${call.recorded} answers=${answers} busy=${busy} /></div>
    </div>`;
}

/**
 * @param {string} address
 * @param {Call & {times: number}} edited
 * @param {AbortSignal} signal
 * @param {(run: string) => void} setRun
 * @param {(change: (answers: Answer[]) => Answer[]) => void} setAnswers
 */
async function receive(address, edited, signal, setRun, setAnswers) {
  const { messages, endpoint, preset, max_tokens, times } = edited;
  const put = (n, change) => setAnswers((answers) => {
    const all = [...answers];
    const before = all[n - 1] ?? { text: "", reasoning: "", us: null, first_token_us: null, tokens_in: null, tokens_out: null, speed: null };
    all[n - 1] = { ...before, ...change(before) };
    return all;
  });
  const body = { messages, endpoint, preset, max_tokens, times };
  let run = "";
  let failure = null;
  for await (const { event, data } of stream(address, body, signal)) {
    if (data?.error) failure = new Error(data.error.message);
    else if (data?.run) setRun(run = data.run);
    else if (event === "message") put(data.n, (one) => ({ text: one.text + (data.text ?? ""), reasoning: one.reasoning + (data.reasoning ?? "") }));
  }
  // What they took stands in the run that they have become.
  if (run) figures((await api("GET", `runs/${run}`, undefined, signal)).spans).forEach((one, at) => put(at + 1, () => one));
  if (failure) throw failure;
}

/** @param {any[][]} rows spans of a run @returns {object[]} of each of its calls */
function figures(rows) {
  return rows.filter((row) => row[2] === "llm").map(([id, , , , , us, status, attributes, texts]) => {
    const told = rows.findLast((row) => row[1] === id && row[2] === "attempt")?.[7] ?? {};
    const first = attributes.time_to_first_token ?? null;
    const written = told["usage.output_tokens"] ?? null;
    return {
      us, first_token_us: first, tokens_in: told["usage.input_tokens"] ?? null, tokens_out: written,
      speed: written !== null && first !== null && us > first ? (written * 1e6) / (us - first) : null,
      error: status === "error" ? texts.error ?? "It failed." : null,
    };
  });
}

/** @param {{messages: Message[], change: (messages: Message[]) => void}} props */
function Messages({ messages, change }) {
  const put = (n, content) => change(messages.map((one, at) => at === n ? { ...one, content } : one));
  return messages.map(({ role, content }, n) => html`
    <${Area} key=${n} label=${`Message ${n + 1} (${role})`} mono=${true} value=${content} onChange=${(text) => put(n, text)}
      rows=${Math.min(14, Math.max(2, content.split("\n").length + 1))} />`);
}

/** @param {{call: Call & {times: number}, change: (values: object) => void}} props */
function Settings({ call, change }) {
  return html`
    <div class="fields">
      <${Choice} label="Endpoint" value=${call.endpoint} options=${call.endpoints} onChange=${(endpoint) => change({ endpoint })} />
      <${Choice} label="Preset" value=${call.preset ?? ""} options=${[["", "none"], ...call.presets]}
        onChange=${(preset) => change({ preset: preset || null })} />
      <${Field} label="Longest answer" type="number" min=${1} value=${call.max_tokens ?? ""} placeholder="as configured"
        onChange=${(text) => change({ max_tokens: text ? Math.trunc(Number(text)) : null })} />
      <${Field} label="Times" type="number" min=${1} max=${5} required value=${call.times}
        onChange=${(text) => change({ times: Math.trunc(Number(text)) || "" })} />
    </div>`;
}


/** @param {{recorded: Answer, answers: Answer[], busy: boolean}} props */
function Results({ recorded, answers, busy }) {
  const [chosen, choose] = useState(0);
  const shown = answers[Math.min(chosen, answers.length - 1)];
  // The difference to half an answer would say nothing.
  const complete = shown?.us == null ? null : shown.text;
  return html`
    <section aria-label="New answer" aria-busy=${busy}>
      <h2>New answer</h2>
      ${answers.length > 1 && html`<${Choice} label="Answer" value=${String(chosen + 1)} options=${answers.map((_, n) => String(n + 1))}
        onChange=${(n) => choose(Number(n) - 1)} />`}
      ${shown ? html`<${Text} answer=${shown} />` : html`<p class="note">${busy ? "waiting for the first token" : "Send the call to see its answer here."}</p>`}
    </section>
    <section aria-label="Recorded answer"><h2>Recorded answer</h2><${Text} answer=${recorded} /></section>
    ${complete != null && html`<${Difference} before=${recorded.text} after=${complete} labels=${["Recorded answer", "New answer"]} />`}
    <${Figures} recorded=${recorded} answers=${answers} />`;
}

/** @param {{answer: Answer}} props */
function Text({ answer }) {
  return html`
    ${answer.reasoning && html`<details><summary>Reasoning</summary><p class="words">${answer.reasoning}</p></details>`}
    <p class="words">${answer.text}</p>
    ${answer.error && html`<p class="bad"><span class="shape" aria-hidden="true">✕</span> ${answer.error}</p>`}`;
}

const FIGURES = [
  ["Time", (one) => duration(one.us, "-")],
  ["First token", (one) => duration(one.first_token_us, "-")],
  ["Tokens in", (one) => count(one.tokens_in)],
  ["Tokens out", (one) => count(one.tokens_out)],
  ["Speed", (one) => one.speed == null ? "-" : `${count(Math.round(one.speed))}/s`],
];

/** @param {{recorded: Answer, answers: Answer[]}} props */
function Figures({ recorded, answers }) {
  const names = answers.length > 1 ? answers.map((_, n) => `New answer ${n + 1}`) : ["New answer"];
  const columns = [recorded, ...answers.length ? answers : [{}]];
  return html`
    <table class="figures" aria-label="Figures">
      <thead><tr><td></td>${["Recorded answer", ...names].map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${FIGURES.map(([name, text]) => html`
        <tr key=${name}><th scope="row">${name}</th>${columns.map((one, n) => html`<td key=${n}>${"us" in one ? text(one) : "-"}</td>`)}</tr>`)}</tbody>
    </table>`;
}
