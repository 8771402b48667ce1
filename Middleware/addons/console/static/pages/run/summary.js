/** What a run was, on one look, and where its time went. */
import { url } from "../../api.js";
import { html, useId } from "../../html.js";
import { useNow } from "../../parts/clock.js";
import { Facts, Odd, State, isUnfinished } from "../../parts/elements.js";
import { Moment, NOT_REPORTED, count, counted, duration, percent } from "../../parts/format.js";
import { answeringAttempt } from "../../parts/spans.js";
import { may } from "../../session.js";
import { configHash, workflowHash } from "../workflows/links.js";

const CLIENTS = {
  openaichatcompletion: "OpenAI chat", openaicompletion: "OpenAI completion", openairesponses: "OpenAI responses",
  ollamaapichat: "Ollama chat", ollamagenerate: "Ollama generate", anthropicmessages: "Anthropic messages",
  koboldgenerate: "KoboldCpp generate",
};

/** @param {{run: object, tree: import("../../parts/spans.js").SpanTree, session: object | null}} props `session`: null for a run file */
export function Summary({ run, tree, session }) {
  const id = useId();
  const running = isUnfinished(run.status);
  const now = useNow(running && run.answered == null);
  const rows = [
    ["Status", html`<${State} status=${run.status} /> <span class="note">${run["error.type"]}</span>`],
    ["Route", run.route || run.workflow || "-"],
    ["Because", run["route.reason"] || "-", "wide"],
    ["Workflow", workflowLink(run, tree, session)],
    ["Answered by", answeredBy(run, tree)],
    ["Model", run.model || "not named"],
    ["User", run.user ?? "-"],
    ["Discussion", run.discussion ? html`<a href=${url`#/runs?discussion=${run.discussion}`}>${run.discussion}</a>` : "none"],
    ["Client", `${CLIENTS[run.client] ?? run.client}, ${run.stream ? "streamed" : "whole"}`],
    ["Started", html`<${Moment} us=${run.started} />`],
    ["Time", times(run, run.answered ?? run.ended ?? (running ? now : null))],
    ["First token", run.first_token == null ? (run.stream ? "none" : "not streamed") : duration(run.first_token - run.started)],
    ["Tokens", tokens(run)],
    ["Prefix cache", cache(run)],
    ["Configuration", configuration(run, session), "wide"],
  ];
  return html`<section class="summary" aria-labelledby=${id}>
    <h2 id=${id} class="sr">Summary</h2>
    <${Facts} look="" rows=${rows} />
    ${run.error && html`<div class="run-error"><span class="shape" aria-hidden="true">✕</span> <pre>${run.error}</pre></div>`}
    <p class="note">${run.note}</p>
  </section>`;
}

function workflowLink(run, tree, session) {
  const folder = tree.roots.find((span) => span.kind === "workflow")?.attributes.folder;
  if (!run.workflow || !folder || !session || !may(session, "all")) return run.workflow || "-";
  return html`<a href=${workflowHash(`Workflows/${folder}/${run.workflow}.json`, run.id)}>${run.workflow}</a>`;
}

function answeredBy(run, tree) {
  const calls = tree.all.filter((span) => span.kind === "llm" && span.status === "ok");
  return run.endpoints.map((endpoint) => {
    const call = calls.find((span) => span.attributes.endpoint === endpoint);
    const model = call && answeringAttempt(call)?.attributes["response.model"];
    return model ? `${endpoint} (${model})` : endpoint;
  }).join(", ") || "no LLM";
}

function times({ started, answered, ended }, end) {
  if (end == null) return NOT_REPORTED;
  const soFar = answered == null && ended == null ? " so far" : "";
  const whole = answered != null && ended - answered > 50_000 ? `, ${duration(ended - started)} with the nodes after it` : "";
  return `${duration(end - started)}${soFar}${whole}`;
}

function tokens({ estimated, "usage.input_tokens": read, "usage.output_tokens": written }) {
  const about = estimated ? "≈" : "";
  return read == null && written == null ? NOT_REPORTED : `${about}${count(read)} read, ${about}${count(written)} written`;
}

function cache({ "usage.cache_read.input_tokens": reused, "usage.input_tokens": read }) {
  if (reused == null) return NOT_REPORTED;
  return read ? `${count(reused)} of ${count(read)} prompt tokens reused (${percent(reused, read)})` : `${count(reused)} tokens reused`;
}

function configuration({ config = [] }, session) {
  if (!config.length) return "-";
  return html`<details><summary>${counted(config.length, "file")}</summary>
    <ul class="files">${config.map(({ path }) => {
      const hash = configHash(session, path);
      return html`<li key=${path}>${hash ? html`<a href=${hash}>${path}</a>` : path}</li>`;
    })}</ul></details>`;
}

/** A minute is the shortest time after which clients commonly give up. */
const LONG_SILENCE = 60e6;

/** Whether the client of a run waits, or has waited, for longer than some clients do without a byte. */
function waitsInSilence({ stream, kind, status, started, answered, ended }) {
  return stream === false && ["chat", "task"].includes(kind) && (isUnfinished(status) ? answered == null : (answered ?? ended) - started > LONG_SILENCE);
}

/** The look of a part by its kind; the words stand next to it. */
const LOOKS = {
  gate: "wait", lock: "wait", turn: "wait", pause: "wait", load: "load", prompt: "read", write: "write", answer: "write",
  tool: "tool", embedding: "tool", memory: "tool", retry: "bad",
};

export function Why({ run, explanation }) {
  const id = useId();
  const parts = (explanation?.parts ?? []).filter((part) => part.us > 0);
  const whole = parts.reduce((sum, part) => sum + part.us, 0);
  const look = (part) => `bar ${LOOKS[part.kind] ?? "own"}`;
  return html`<section class="why" aria-labelledby=${id}>
    <h2 id=${id}>Why it took this long</h2>
    <p class="sentence">${explanation?.text || (isUnfinished(run.status) ? "It is still at work; the explanation comes with its end."
      : "Nothing was recorded that could explain it.")}</p>
    ${whole > 0 && html`<div class="share" aria-hidden="true">${parts.map((part) => html`<i class=${look(part)} title=${`${part.what}, ${
        duration(part.us)}`} style=${{ flexGrow: part.us }}></i>`)}</div>
      <ul class="parts">${parts.map((part) => html`<li><i class=${look(part)} aria-hidden="true"></i> <span class="num">${
        duration(part.us)}</span> ${part.what} <span class="note num">${percent(part.us, whole)}</span></li>`)}</ul>`}
    ${waitsInSilence(run) && html`<${Odd}>The answer is not streamed: its client gets nothing until all of it is there, and many clients
      give up after some minutes of silence. Let the client stream.<//>`}
    ${explanation?.odd?.map((sentence) => html`<${Odd}>${sentence}<//>`)}
  </section>`;
}
