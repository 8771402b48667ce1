/** What a run was, on one look. */
import { html, useId } from "../../html.js";
import { Moment, count, duration, percent } from "../../parts/format.js";
import { isUnfinished } from "../../parts/run_data.js";
import { answeringAttempt } from "../../parts/spans.js";
import { State } from "../../parts/state.js";
import { useNow } from "../../parts/clock.js";
import { hasPage } from "../../routes.js";
import { workflowHash } from "../workflows/links.js";

const CLIENTS = {
  openaichatcompletion: "OpenAI chat", openaicompletion: "OpenAI completion", openairesponses: "OpenAI responses",
  ollamaapichat: "Ollama chat", ollamagenerate: "Ollama generate", anthropicmessages: "Anthropic messages",
  koboldgenerate: "KoboldCpp generate",
};

/** @param {{run: object, tree: import("../../parts/spans.js").SpanTree, operator: boolean, workflows: boolean}} props `workflows`: their pages may be seen */
export function Summary({ run, tree, operator, workflows }) {
  const id = useId();
  const running = isUnfinished(run.status);
  const now = useNow(running && run.answered == null);
  const end = run.answered ?? run.ended ?? (running ? now : null);
  const rows = [
    ["Status", html`<${State} status=${run.status} />${run["error.type"] && html` <span class="quiet-text">${run["error.type"]}</span>`}`],
    ["Route", run.route || run.workflow || "-"],
    ["Because", run["route.reason"] || "-", "wide"],
    ["Workflow", workflowLink(run, tree, workflows)],
    ["Answered by", answeredBy(run, tree)],
    ["Model", run.model || "not named"],
    ["User", run.user ?? "-"],
    ["Discussion", run.discussion ? html`<a href=${`#/runs?discussion=${encodeURIComponent(run.discussion)}`}>${run.discussion}</a>` : "none"],
    ["Client", `${CLIENTS[run.client] ?? run.client}, ${run.stream ? "streamed" : "whole"}`],
    ["Started", html`<${Moment} us=${run.started} />`],
    ["Time", times(run, end)],
    ["First token", run.first_token == null ? (run.stream ? "none" : "not streamed") : duration(run.first_token - run.started)],
    ["Tokens", tokens(run)],
    ["Prefix cache", cache(run)],
    ["Configuration", configuration(run, operator), "wide"],
  ];
  return html`<section class="summary" aria-labelledby=${id}>
    <h2 id=${id} class="sr">Summary</h2>
    <dl>${rows.map(([name, value, kind]) => html`<div key=${name} class=${kind}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${run.error && html`<div class="run-error"><span class="shape" aria-hidden="true">✕</span> <pre>${run.error}</pre></div>`}
    ${run.note && html`<p class="note">${run.note}</p>`}
  </section>`;
}

function workflowLink(run, tree, linked) {
  if (!run.workflow) return "-";
  const folder = tree.roots.find((span) => span.kind === "workflow")?.attributes.folder;
  if (!folder || !linked) return run.workflow;
  return html`<a href=${workflowHash(`Workflows/${folder}/${run.workflow}.json`, run.id)}>${run.workflow}</a>`;
}

function answeredBy(run, tree) {
  const calls = tree.all.filter((span) => span.kind === "llm" && span.status === "ok");
  const named = run.endpoints.map((endpoint) => {
    const call = calls.find((span) => span.attributes.endpoint === endpoint);
    const model = call && answeringAttempt(call)?.attributes["response.model"];
    return model ? `${endpoint} (${model})` : endpoint;
  });
  return named.join(", ") || "nobody";
}

function times(run, end) {
  if (end == null) return "not reported";
  const whole = run.ended != null && run.answered != null && run.ended - run.answered > 50_000
    ? `, ${duration(run.ended - run.started)} with the nodes after it` : "";
  return `${duration(end - run.started)}${run.answered == null && run.ended == null ? " so far" : ""}${whole}`;
}

function tokens(run) {
  const about = run.estimated ? "≈" : "";
  const read = run["usage.input_tokens"];
  const written = run["usage.output_tokens"];
  if (read == null && written == null) return "not reported";
  return `${about}${count(read)} read, ${about}${count(written)} written`;
}

function cache(run) {
  const reused = run["usage.cache_read.input_tokens"];
  const read = run["usage.input_tokens"];
  if (reused == null) return "not reported";
  return read ? `${count(reused)} of ${count(read)} prompt tokens reused (${percent(reused, read)})` : `${count(reused)} tokens reused`;
}

function configuration(run, operator) {
  const files = run.config ?? [];
  if (!files.length) return "-";
  const linked = operator && hasPage("config");
  return html`<details><summary>${files.length === 1 ? "1 file" : `${count(files.length)} files`}</summary>
    <ul class="files">${files.map(({ path }) => html`<li key=${path}>${linked
      ? html`<a href=${`#/config?file=${encodeURIComponent(path)}`}>${path}</a>` : path}</li>`)}</ul></details>`;
}
