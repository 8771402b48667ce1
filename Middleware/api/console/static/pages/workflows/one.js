/** One workflow: its nodes, what the check says about them, and what they took. */
import { useApi } from "../../api.js";
import { html } from "../../html.js";
import { Empty, Loading, Problem } from "../../parts/alert.js";
import { counted, duration, plain, shortId } from "../../parts/format.js";
import { Title } from "../../parts/title.js";
import { backendsHash, configHash, useText, workflowHash } from "./links.js";
import { WorkflowMap } from "./map.js";
import { neighbours } from "./neighbours.js";

/** @param {{path: string[], run: string | null, session: import("../../session.js").Session}} props */
export function WorkflowPage({ path, run, session }) {
  const { data, error, loading, reload } = useApi(`workflows/${path.map(encodeURIComponent).join("/")}`);
  const ran = useApi(run ? `runs/${encodeURIComponent(run)}` : null);
  const lit = ran.data ? spansOf(ran.data.spans, path.join("/")) : null;
  const folder = path.slice(0, -1).join("/");
  const name = path.at(-1);
  const map = data && neighbours(data);
  const edit = data && configHash(session, data.path);
  return html`
    <p class="crumbs"><a href="#/workflows">Workflows</a>${folder && ` › ${folder}`}</p>
    <div class="head"><${Title}>${name}<//>
      ${data && html`<span class="quiet-text">${data.users.length ? data.users.join(", ") : "no user runs it"}</span>`}
      <span class="push"></span>${edit && html`<a href=${edit}>Open in the editor</a>`}</div>
    ${error && error.status !== 404 && html`<${Problem} error=${error} retry=${reload} />`}
    ${error?.status === 404 && html`<${Empty} title="This workflow is not here"><p>${error.message}</p><//>`}
    ${loading && !data && html`<${Loading} />`}
    ${data && html`
      <p><span class="quiet-text">Used by</span> ${data.used_by.length ? html`<ul class="uses" role="list" aria-label="Used by">
        ${data.used_by.map((use) => html`<li>${useLink(use, session, run)}</li>`)}</ul>` : "nothing"}</p>
      ${data.problem && html`<p class="bad-text">${data.problem}</p>`}
      <${Findings} findings=${data.findings} path=${data.path} session=${session} />
      ${run && ran.data && html`<p>Lit: the path of <a href=${`#/runs/${encodeURIComponent(run)}`}>run ${shortId(run)}</a>${lit.size
        ? "" : ", which did not come here"}.</p>`}
      <${Problem} error=${ran.error} />
      ${data.nodes.length > 0 && html`<ol class="nodes" role="list" aria-label="Nodes">
        ${data.nodes.map((node) => html`<${Node} key=${node.index} node=${node} data=${data} lit=${lit} run=${run} session=${session} />`)}
      </ol>`}
      ${data.nodes.length > 0 && html`<p class="quiet-text">Times are medians. ${data.runs
        ? `Of the last 100 runs, ${data.runs} came here.` : "None of the last 100 runs came here."}</p>`}
      <section aria-labelledby="map-title"><h2 id="map-title">Map</h2>
        <${WorkflowMap} ...${map} session=${session} here=${`workflow:${data.path}`} /></section>`}`;
}

function Node({ node, data, lit, run, session }) {
  const spans = lit?.get(node.index);
  const first = data.nodes[node.index - 2];
  const line = configHash(session, data.path, node.line);
  return html`
    ${node.after_answer && first && !first.after_answer && html`<li class="after-answer">answer complete</li>`}
    <li class=${lit ? (spans ? "lit" : "unlit") : ""}>
      <div class="node">
        <span class="number">${node.index}</span>
        <span class="title">${node.title || node.type}${node.responder && html` <span class="quiet-text">answers</span>`}</span>
        <span>${node.type}</span>
        <span>${details(node, session, run)}</span>
        <span class="figures">${figures(node.figures, spans)}</span>
        <span class="line">${node.line && (line ? html`<a href=${line}>Line ${node.line}</a>` : html`<span class="quiet-text">Line ${node.line}</span>`)}</span>
      </div>
      <${Findings} findings=${node.findings} path=${data.path} session=${session} />
    </li>`;
}

function details(node, session, run) {
  const backends = backendsHash(session);
  const parts = [
    ...node.endpoints.map((name) => (backends && !name.includes("{") ? html`<a href=${backends}>${name}</a>` : name)),
    node.preset && html`<span class="quiet-text">preset</span> ${node.preset}`,
    ...node.children.map((child) => html`→ ${child.path ? html`<a href=${workflowHash(child.path, run)}>${child.name}</a>` : child.name}`),
    node.uses.length > 0 && `uses ${node.uses.join(", ")}`,
  ].filter(Boolean);
  return parts.map((part, index) => html`${index > 0 && html`<span class="quiet-text"> · </span>`}${part}`);
}

function figures(found, spans) {
  const own = spans ? `${plain(duration(spans.reduce((sum, span) => sum + span.us, 0)))} in this run` : "";
  const all = found ? `median ${plain(duration(found.median_us))}, ${found.failed} of ${found.runs} failed` : "";
  return [own, all].filter(Boolean).join(" · ");
}

function useLink(use, session, run) {
  if (use.kind === "workflow") return html`<a href=${workflowHash(use.path, run)}>${useText(use)}</a>`;
  const hash = configHash(session, use.path);
  return hash ? html`<a href=${hash}>${useText(use)}</a>` : useText(use);
}

function Findings({ findings, path, session }) {
  if (!findings.length) return null;
  return html`<ul class="findings" role="list" aria-label=${counted(findings.length, "finding")}>${findings.map((finding) => {
    const hash = configHash(session, path, finding.line);
    return html`<li class=${finding.severity}>${finding.severity}: ${finding.text} ${hash && finding.line
      && html`<a href=${hash} aria-label=${`Finding in line ${finding.line}`}>line ${finding.line}</a>`}</li>`;
  })}</ul>`;
}

/** The spans of a workflow's nodes in a run, by the number of the node. */
function spansOf(rows, path) {
  const inside = new Set(rows.filter((row) => row[2] === "workflow" && pathOf(row) === path).map((row) => row[0]));
  const found = new Map();
  for (const [, parent, kind, , , us, , attributes] of rows) {
    const index = attributes["node.index"];
    if (kind === "node" && inside.has(parent)) found.set(index, [...(found.get(index) ?? []), { us }]);
  }
  return found;
}

const pathOf = (row) => [row[7].folder, row[7]["workflow.name"]].filter(Boolean).join("/");

