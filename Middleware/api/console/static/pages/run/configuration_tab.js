/** The node of a workflow file that a span comes from. */
import { useApi } from "../../api.js";
import { html } from "../../html.js";
import { Loading, Problem } from "../../parts/alert.js";
import { Folded } from "../../parts/folded.js";
import { workflowOf } from "../../parts/spans.js";
import { hasPage } from "../../routes.js";
import { may } from "../../session.js";
import { json } from "./payload.js";

/** @param {{run: object, span: import("../../parts/spans.js").Span, session: object | null, local: boolean}} props */
export function NodeConfiguration({ run, span, session, local }) {
  const workflow = workflowOf(span);
  const folder = workflow?.attributes.folder;
  const name = workflow?.attributes["workflow.name"] ?? workflow?.name;
  const askable = !local && session && may(session, "all") && hasPage("workflows") && folder && name;
  const { data, error, loading, reload } = useApi(askable
    ? `workflows/${encodeURIComponent(folder)}/${encodeURIComponent(name)}` : null);
  const facts = [["Workflow", name], ["Folder", folder], ["Node", span.attributes["node.index"]], ["Type", span.attributes["node.type"]],
    ["Endpoint", span.attributes.endpoint], ["Preset", span.attributes.preset]].filter(([, value]) => value != null && value !== "");
  const node = data?.nodes?.find((one) => one.index === span.attributes["node.index"]);
  const path = data?.path ?? run.config?.find((file) => file.path.endsWith(`${folder}/${name}.json`))?.path;
  const then = run.config?.find((file) => file.path === path)?.hash;
  return html`<dl class="facts">${facts.map(([term, value]) => html`<div key=${term}><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>
    ${askable && loading && html`<${Loading} />`}
    <${Problem} error=${error} retry=${reload} />
    ${node?.line && path && hasPage("config") && may(session, "operator")
      && html`<p><a href=${`#/config?file=${encodeURIComponent(path)}&line=${node.line}`}>Line ${node.line}</a></p>`}
    ${data?.hash && then && data.hash !== then && html`<p class="odd"><span class="shape" aria-hidden="true">!</span>
      The file has changed since this run; below is what it says today.</p>`}
    ${node?.json && html`<${Folded} text=${typeof node.json === "string" ? node.json : json(node.json)} label=${`${folder} ${name} ${node.index}`} />`}
    ${data && !node && html`<p class="quiet-text">The workflow no longer has a node at this place.</p>`}`;
}
