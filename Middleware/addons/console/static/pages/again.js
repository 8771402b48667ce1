/** The page Try again: one recorded call, edited and sent straight to an endpoint. */
import { api, stream, url, useAction, useApi } from "../api.js";
import { html, instead, useEffect, useRef, useState } from "../html.js";
import { Difference } from "../parts/editor.js";
import { Area, Choice, Field, Loaded, Problem, Title } from "../parts/elements.js";
import { count, duration, rate, shortId } from "../parts/format.js";

/**
 * @typedef {{text: string, reasoning: string, us: number | null, first_token_us: number | null, tokens_in: number | null,
 *   tokens_out: number | null, speed: number | null, error?: string | null}} Answer
 * @typedef {{role: string, content: string}} Message
 * @typedef {{messages: Message[], endpoint: string, preset: string | null, max_tokens: number | null, endpoints: string[],
 *   presets: string[], recorded: Answer}} Call
 */

/** @param {{path: string[]}} props run and span */
export default function Again({ path: [id, span] }) {
  const address = url`runs/${id}/again/${span}`;
  return html`
    <${Title}>Try again<//>
    <p class="note">A call of <a href=${url`#/runs/${id}`}>run ${shortId(id)}</a>, sent to an endpoint as it stands here. No workflow runs, and nothing is remembered.</p>
    <${Loaded} from=${useApi(address)}>${(call) => html`<${Desk} call=${call} address=${address} />`}<//>`;
}

/** @param {{call: Call, address: string}} props */
function Desk({ call, address }) {
  const [edited, setEdited] = useState({ ...call, times: 1 });
  const [answers, setAnswers] = useState([]);
  const [run, setRun] = useState("");
  const sending = useRef(null);
  useEffect(() => () => sending.current?.abort(), []);
  const change = (values) => setEdited({ ...edited, ...values });
  const write = (n, content) => change({ messages: edited.messages.map((one, at) => (at === n ? { ...one, content } : one)) });
  const send = useAction(async () => {
    const { signal } = sending.current = new AbortController();
    setRun("");
    setAnswers([]);
    await receive(address, edited, signal, setRun, setAnswers).catch((problem) => {
      if (!signal.aborted) throw problem;
    });
  });
  return html`
    <div class="pair">
      <form aria-label="Call" onSubmit=${instead(send.run)}>
        ${edited.messages.map(({ role, content }, n) => html`<${Area} key=${n} label=${`Message ${n + 1} (${role})`} class="mono" spellcheck=${false}
          value=${content} rows=${Math.min(14, Math.max(2, content.split("\n").length + 1))} onChange=${(text) => write(n, text)} />`)}
        <div class="fields">
          <${Choice} label="Endpoint" value=${edited.endpoint} options=${call.endpoints} onChange=${(endpoint) => change({ endpoint })} />
          <${Choice} label="Preset" value=${edited.preset ?? ""} options=${[["", "none"], ...call.presets]}
            onChange=${(preset) => change({ preset: preset || null })} />
          <${Field} label="Longest answer" type="number" min="1" value=${edited.max_tokens ?? ""} placeholder="as configured"
            onChange=${(text) => change({ max_tokens: text ? Math.trunc(Number(text)) : null })} />
          <${Field} label="Times" type="number" min="1" max="5" required value=${edited.times}
            onChange=${(text) => change({ times: Math.trunc(Number(text)) || "" })} />
        </div>
        <p class="actions">
          <button type="submit" class="primary" disabled=${send.busy}>Send</button>
          <button disabled=${!send.busy} onClick=${() => sending.current?.abort()}>Stop</button>
          <button disabled=${send.busy} onClick=${() => setEdited({ ...call, times: 1 })}>As recorded</button>
          ${run && html`<a href=${url`#/runs/${run}`}>Open run</a>`}
        </p>
        <${Problem} error=${send.error} retry=${send.run} />
      </form>
      <div><${Results} recorded=${call.recorded} answers=${answers} busy=${send.busy} /></div>
    </div>`;
}

/**
 * @param {string} address
 * @param {Call & {times: number}} edited
 * @param {AbortSignal} signal
 * @param {(run: string) => void} setRun
 * @param {(change: (answers: Answer[]) => Answer[]) => void} setAnswers
 */
async function receive(address, { messages, endpoint, preset, max_tokens, times }, signal, setRun, setAnswers) {
  const put = (n, change) => setAnswers((answers) => {
    const before = answers[n] ?? { text: "", reasoning: "" };
    return Object.assign([...answers], { [n]: { ...before, ...change(before) } });
  });
  let run = "";
  let failure = null;
  for await (const { event, data } of stream(address, { messages, endpoint, preset, max_tokens, times }, signal)) {
    if (data?.error) failure = new Error(data.error.message);
    else if (data?.run) setRun(run = data.run);
    else if (event === "message") put(data.n - 1, (one) => ({ text: one.text + (data.text ?? ""), reasoning: one.reasoning + (data.reasoning ?? "") }));
  }
  // What they took stands in the run that they have become.
  if (run) figures((await api("GET", url`runs/${run}`, undefined, signal)).spans).forEach((one, n) => put(n, () => one));
  if (failure) throw failure;
}

/** @param {any[][]} rows spans of a run @returns {object[]} of each of its calls */
function figures(rows) {
  return rows.filter((row) => row[2] === "llm").map(([id, , , , , us, status, attributes, texts]) => {
    const told = rows.findLast((row) => row[1] === id && row[2] === "attempt")?.[7] ?? {};
    const first = attributes.time_to_first_token ?? null;
    const written = told["usage.output_tokens"] ?? null;
    return {
      us, first_token_us: first, tokens_in: told["usage.input_tokens"], tokens_out: written,
      speed: written !== null && first !== null && us > first ? (written * 1e6) / (us - first) : null,
      error: status === "error" ? texts.error ?? "It failed." : null,
    };
  });
}

/** @param {{recorded: Answer, answers: Answer[], busy: boolean}} props */
function Results({ recorded, answers, busy }) {
  const [chosen, choose] = useState(0);
  const shown = answers[Math.min(chosen, answers.length - 1)];
  return html`
    <section aria-label="New answer" aria-busy=${busy}>
      <h2>New answer</h2>
      ${answers.length > 1 && html`<${Choice} label="Answer" value=${String(chosen + 1)} options=${answers.map((_, n) => String(n + 1))}
        onChange=${(n) => choose(Number(n) - 1)} />`}
      ${shown ? html`<${Text} answer=${shown} />` : html`<p class="note">${busy ? "waiting for the first token" : "Send the call to see its answer here."}</p>`}
    </section>
    <section aria-label="Recorded answer"><h2>Recorded answer</h2><${Text} answer=${recorded} /></section>
    ${/* The difference to half an answer would say nothing. */ shown?.us != null
      && html`<${Difference} before=${recorded.text} after=${shown.text} labels=${["Recorded answer", "New answer"]} />`}
    <${Figures} recorded=${recorded} answers=${answers} />`;
}

/** @param {{answer: Answer}} props */
function Text({ answer }) {
  return html`
    ${answer.reasoning && html`<details><summary>Reasoning</summary><p class="words">${answer.reasoning}</p></details>`}
    <p class="words">${answer.text}</p>
    ${answer.error && html`<p class="bad"><span class="shape" aria-hidden="true">✕</span> ${answer.error}</p>`}`;
}

const FIGURES = {
  Time: (one) => duration(one.us, "-"),
  "First token": (one) => duration(one.first_token_us, "-"),
  "Tokens in": (one) => count(one.tokens_in),
  "Tokens out": (one) => count(one.tokens_out),
  Speed: (one) => rate(one.speed, "-"),
};

/** @param {{recorded: Answer, answers: Answer[]}} props */
function Figures({ recorded, answers }) {
  const news = answers.length ? answers : [{}];
  const names = ["Recorded answer", ...news.map((_, n) => (news.length > 1 ? `New answer ${n + 1}` : "New answer"))];
  return html`<table class="figures" aria-label="Figures">
    <thead><tr><td></td>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${Object.entries(FIGURES).map(([name, text]) => html`<tr><th scope="row">${name}</th>${
      [recorded, ...news].map((one) => html`<td>${"us" in one ? text(one) : "-"}</td>`)}</tr>`)}</tbody>
  </table>`;
}
