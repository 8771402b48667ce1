/** The node of a workflow file that a span comes from. */
import { useApi } from "../../api.js";
import { html } from "../../html.js";
import { Facts, Loaded } from "../../parts/elements.js";
import { Folded } from "../../parts/folded.js";
import { asText } from "../../parts/format.js";
import { around } from "../../parts/spans.js";
import { may } from "../../session.js";
import { configHash, workflowPath } from "../workflows/links.js";
import { Odd } from "./why.js";

/** @param {{run: object, span: import("../../parts/spans.js").Span, session: object | null}} props */
export function NodeConfiguration({ run, span, session }) {
  const { attributes } = span;
  const workflow = around(span, "workflow");
  const folder = workflow?.attributes.folder;
  const name = workflow?.attributes["workflow.name"] ?? workflow?.name;
  const index = attributes["node.index"];
  const askable = session && may(session, "all") && folder && name;
  const today = useApi(askable ? workflowPath(`${folder}/${name}`) : null);
  const shown = ({ path, hash, nodes }) => {
    const node = nodes.find((one) => one.index === index);
    const line = node && configHash(session, path, node.line);
    const then = run.config?.find((file) => file.path === path)?.hash;
    return html`${line && html`<p><a href=${line}>Line ${node.line}</a></p>`}
      ${then && hash !== then && html`<${Odd}>The file has changed since this run; below is what it says today.<//>`}
      ${node ? html`<${Folded} text=${asText(node.json)} label=${`${folder} ${name} ${index}`} />`
        : html`<p class="quiet-text">The workflow no longer has a node at this place.</p>`}`;
  };
  return html`<${Facts} rows=${[["Workflow", name], ["Folder", folder], ["Node", index], ["Type", attributes["node.type"]],
    ["Endpoint", attributes.endpoint], ["Preset", attributes.preset]]} />
    ${askable && html`<${Loaded} from=${today}>${shown}<//>`}`;
}
