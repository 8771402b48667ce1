/** Workflows: what there is, how it is connected, and what each node took in the last runs. */
import { html } from "../html.js";
import { WorkflowList } from "./workflows/list.js";
import { WorkflowPage } from "./workflows/one.js";

/** @param {{path: string[], query: URLSearchParams, session: import("../session.js").Session}} props */
export default function Workflows({ path, query, session }) {
  return path.length
    ? html`<${WorkflowPage} key=${path.join("/")} path=${path} run=${query.get("run")} session=${session} />`
    : html`<${WorkflowList} query=${query} session=${session} />`;
}
