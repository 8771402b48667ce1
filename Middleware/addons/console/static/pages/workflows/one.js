/** One workflow: its nodes, what the check says about them, and what they took. */
import { url, useApi } from "../../api.js";
import { html } from "../../html.js";
import { Empty, Loaded, Problem, Title } from "../../parts/elements.js";
import { counted, duration, plain, shortId } from "../../parts/format.js";
import { configHash, link, shortPath, useText, workflowHash, workflowPath } from "./links.js";
import { WorkflowMap } from "./map.js";

export default function Workflow({ path, query, session }) {
  const run = query.get("run");
  const workflow = useApi(workflowPath(path.join("/")));
  const ran = useApi(run && url`runs/${run}`);
  const { data, error } = workflow;
  const folder = path.slice(0, -1).join("/");
  const edit = data && configHash(session, data.path);
  return html`
    <p class="crumbs"><a href="#/workflows">Workflows</a>${folder && ` › ${folder}`}</p>
    <div class="head"><${Title}>${path.at(-1)}<//>
      <span class="note">${data && (data.users.join(", ") || "no user runs it")}</span>
      <span class="push">${edit && html`<a href=${edit}>Open in the editor</a>`}</span></div>
    ${error?.status === 404 ? html`<${Empty} title="This workflow is not here"><p>${error.message}</p><//>`
      : html`<${Loaded} from=${workflow}>${() => html`<${Shown} data=${data} ran=${ran} run=${run} session=${session} />`}<//>`}`;
}

function Shown({ data, ran, run, session }) {
  const lit = ran.data && spansOf(ran.data.spans, data.path);
  return html`
    <p><span class="note">Used by</span> ${data.used_by.length ? html`<ul class="uses" role="list" aria-label="Used by">${data.used_by.map((use) => html`
      <li>${link(use.kind === "workflow" ? workflowHash(use.path, run) : configHash(session, use.path), useText(use))}</li>`)}</ul>` : "nothing"}</p>
    <p class="bad">${data.problem}</p>
    <${Findings} findings=${data.findings} path=${data.path} session=${session} />
    ${lit && html`<p>Lit: the path of <a href=${url`#/runs/${run}`}>run ${shortId(run)}</a>${lit.size ? "" : ", which did not come here"}.</p>`}
    <${Problem} error=${ran.error} retry=${ran.reload} />
    ${data.nodes.length > 0 && html`<ol class="nodes" role="list" aria-label="Nodes">
        ${data.nodes.map((node) => html`<${Node} key=${node.index} node=${node} data=${data} lit=${lit} run=${run} session=${session} />`)}
      </ol>
      <p class="note">Times are medians. ${data.runs ? `Of the last 100 runs, ${data.runs} came here.` : "None of the last 100 runs came here."}</p>`}
    <section aria-labelledby="map-title"><h2 id="map-title">Map</h2>
      <${WorkflowMap} ...${neighbours(data)} session=${session} here=${`workflow:${data.path}`} /></section>`;
}

function Node({ node, data, lit, run, session }) {
  const times = lit?.get(node.index);
  const before = data.nodes[node.index - 2];
  const line = node.line && configHash(session, data.path, node.line);
  const figures = [
    times && `${plain(duration(times.reduce((sum, us) => sum + us, 0)))} in this run`,
    node.figures && `median ${plain(duration(node.figures.median_us))}, ${node.figures.failed} of ${node.figures.runs} failed`,
  ];
  const details = [
    ...node.endpoints.map((name) => link(!name.includes("{") && "#/backends", name)),
    node.preset && html`<span class="note">preset</span> ${node.preset}`,
    ...node.children.map((child) => html`→ ${link(child.path && workflowHash(child.path, run), child.name)}`),
    node.uses.length > 0 && `uses ${node.uses.join(", ")}`,
  ];
  return html`
    ${node.after_answer && before && !before.after_answer && html`<li class="after-answer">answer complete</li>`}
    <li class=${lit ? (times ? "lit" : "unlit") : ""}>
      <div class="node">
        <span class="number">${node.index}</span>
        <span class="title">${node.title || node.type}${node.responder && html` <span class="note">answers</span>`}</span>
        <span>${node.type}</span>
        <span>${details.filter(Boolean).map((part, index) => [index > 0 && html`<span class="note"> · </span>`, part])}</span>
        <span class="figures">${figures.filter(Boolean).join(" · ")}</span>
        <span class="line">${node.line && (line ? html`<a href=${line}>Line ${node.line}</a>` : html`<span class="note">Line ${node.line}</span>`)}</span>
      </div>
      <${Findings} findings=${node.findings} path=${data.path} session=${session} />
    </li>`;
}

function Findings({ findings, path, session }) {
  return findings.length > 0 && html`<ul class="findings" role="list" aria-label=${counted(findings.length, "finding")}>${findings.map(({ severity, text, line }) => {
    const hash = line && configHash(session, path, line);
    return html`<li class=${severity}>${severity}: ${text} ${hash && html`<a href=${hash} aria-label=${`Finding in line ${line}`}>line ${line}</a>`}</li>`;
  })}</ul>`;
}

/** How long a workflow's nodes took in a run: all times by the number of the node. @param {string} file of the workflow */
function spansOf(rows, file) {
  const isHere = ([, , kind, , , , , { folder, "workflow.name": name }]) => kind === "workflow"
    && workflowPath([folder, name].filter(Boolean).join("/")) === workflowPath(file);
  const inside = new Set(rows.filter(isHere).map(([id]) => id));
  const found = new Map();
  for (const [, parent, kind, , , us, , attributes] of rows) {
    const index = attributes["node.index"];
    if (kind === "node" && inside.has(parent)) found.set(index, [...(found.get(index) ?? []), us]);
  }
  return found;
}

/** @param {object} data a workflow of the API @returns {{boxes: object[], arrows: object[]}} */
function neighbours(data) {
  const boxes = new Map();
  const arrows = new Map();
  const box = (kind, name, label = shortPath(name)) => {
    const id = `${kind}:${name}`;
    if (!boxes.has(id)) boxes.set(id, { id, kind, label });
    return id;
  };
  const arrow = (source, target, label) => {
    const key = `${source}\n${target}`;
    if (!arrows.has(key)) arrows.set(key, { source, target, labels: [] });
    arrows.get(key).labels.push(label);
  };
  const here = box("workflow", data.path, data.name);
  for (const { kind, path, name, node } of data.used_by) {
    const user = kind === "key" ? shortPath(path) : name.split(":")[0];
    if (kind === "workflow") arrow(box("workflow", path, name), here, `node ${node}`);
    else if (kind === "category") arrow(box("routing", path), here, name);
    else if (kind === "settings") arrow(box("settings", path), here, name);
    else arrow(box("user", user, user), here, name);
  }
  for (const { index, children, endpoints } of data.nodes) {
    for (const { path } of children) if (path) arrow(here, box("workflow", path), `node ${index}`);
    for (const name of endpoints) if (!name.includes("{")) arrow(here, box("endpoint", name, name), `node ${index}`);
  }
  return { boxes: [...boxes.values()], arrows: [...arrows.values()] };
}
