/** All workflows by folder, and the map of how they are connected. */
import { url, useApi } from "../../api.js";
import { html } from "../../html.js";
import { Choice, Empty, Loaded, Title } from "../../parts/elements.js";
import { counted } from "../../parts/format.js";
import { navigate } from "../../routes.js";
import { useText, workflowHash } from "./links.js";
import { WorkflowMap } from "./map.js";

// A workflow that many others run would fill the page.
const MOST_USES = 3;

export default function WorkflowList({ query, session }) {
  const workflows = useApi("workflows");
  const user = query.get("user") ?? "";
  const map = useApi(user ? url`map?user=${user}` : "map");
  const all = workflows.data?.workflows ?? [];
  const users = [...new Set(all.flatMap((one) => one.users))].sort();
  const shown = user ? all.filter((one) => one.users.includes(user)) : all;
  return html`
    <div class="head"><${Title}>Workflows<//>
      ${all.length > 0 && html`<span class="note">${counted(shown.length, "workflow")}</span>`}
      ${users.length > 1 && html`<span class="push"><${Choice} label="User" value=${user} options=${[["", "all"], ...users]}
        onChange=${(name) => navigate(name ? url`#/workflows?user=${name}` : "#/workflows", { replace: true })} /></span>`}</div>
    <${Loaded} from=${workflows}>${() => (all.length ? html`
      <ul class="workflow-list" role="list" aria-label="Workflows">${byFolder(shown).map(([folder, some]) => html`
        <li key=${folder}><h2>${folder || "Workflows"}</h2><ul role="list" aria-label=${`Workflows in ${folder}`}>${some.map((one) => html`
          <li key=${one.path}><a href=${workflowHash(one.path)}>${one.name}</a>
            <span class="note">${one.problem ? "" : counted(one.nodes, "node")}</span>
            <span>${one.problem || uses(one)}</span></li>`)}</ul></li>`)}</ul>
      <section aria-labelledby="map-title"><h2 id="map-title">Map</h2>
        <${Loaded} from=${map}>${(data) => html`<${WorkflowMap} ...${data} session=${session} />`}<//></section>`
      : html`<${Empty} title="No workflows">
        <p>The files in <code>Configs/Workflows</code> are listed here, with what uses them.
        ${session.role !== "operator" && " You see those of the users of your key."}</p><//>`)}<//>`;
}

function uses({ used_by: all }) {
  const more = all.length - MOST_USES;
  return html`<span class="note">used by${all.length ? "" : " nothing"}</span> ${
    all.slice(0, MOST_USES).map(useText).join(", ")}${more > 0 && ` and ${more} more`}`;
}

/** Those in use first: an installation has many examples that are not. */
function byFolder(all) {
  const found = new Map();
  for (const one of all) found.set(one.folder, [...(found.get(one.folder) ?? []), one]);
  const unused = (some) => some.every((one) => !one.users.length);
  return [...found].sort((a, b) => unused(a[1]) - unused(b[1]));
}
