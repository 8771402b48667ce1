/** The map: boxes that dagre places, drawn as an SVG of our own, and the same as a table. */
import { useModule } from "../../api.js";
import { html, useId, useMemo, useState } from "../../html.js";
import { Problem, Table } from "../../parts/elements.js";
import { configHash, link, workflowHash } from "./links.js";

const HEIGHT = 38;
const LETTER = 7.4;
const MARGIN = 16;

/** @param {{boxes: object[], arrows: object[], session: object, here?: string}} props `here`: the box of this page */
export function WorkflowMap({ boxes, arrows, session, here }) {
  const [asTable, setAsTable] = useState(false);
  const { placed, error } = usePlaces(boxes, arrows);
  const end = (which) => (arrow) => {
    const box = boxes.find(({ id }) => id === arrow[which]);
    return html`<span class="note">${box.kind}</span> ${link(hashOf(box, session), box.label)}`;
  };
  return html`
    <${Problem} error=${error} />
    ${placed && html`<figure class="map" aria-label="Map"><${Drawing} placed=${placed} session=${session} here=${here} /></figure>`}
    <p class="actions"><button aria-expanded=${String(asTable)} onClick=${() => setAsTable(!asTable)}>Map as table</button></p>
    ${asTable && html`<${Table} label="Map as table" rows=${arrows}
      columns=${{ From: end("source"), To: end("target"), For: ({ labels }) => labels.join(", ") || "-" }} />`}`;
}

/** Where dagre puts the boxes. It is loaded when a map is shown first. */
function usePlaces(boxes, arrows) {
  const { data: module, error } = useModule("dagre", () => import("@dagrejs/dagre"),
    "The map cannot be drawn, because a file of it is missing. The table has the same.");
  const words = JSON.stringify([boxes, arrows]);
  return { error, placed: useMemo(() => module && place(module.default ?? module, boxes, arrows), [module, words]) };
}

function place(dagre, boxes, arrows) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 56, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) graph.setNode(box.id, { width: Math.max(70, box.label.length * LETTER + 24), height: HEIGHT });
  for (const arrow of arrows) graph.setEdge(arrow.source, arrow.target);
  dagre.layout(graph);
  const size = graph.graph();
  return {
    width: Math.ceil(size.width), height: Math.ceil(size.height),
    boxes: boxes.map((box) => ({ ...box, ...graph.node(box.id) })),
    arrows: arrows.map((arrow) => ({ ...arrow, points: graph.edge(arrow.source, arrow.target).points })),
  };
}

function Drawing({ placed: { width, height, boxes, arrows }, session, here }) {
  const id = useId();
  return html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
    <defs><marker id=${id} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path class="tip" d="M0 0 8 4 0 8z" /></marker></defs>
    <g aria-hidden="true">${arrows.map((arrow) => html`<path class="arrow" d=${path(arrow.points)} marker-end=${`url(#${id})`}>
      ${arrow.labels.length > 0 && html`<title>${arrow.labels.join(", ")}</title>`}</path>`)}</g>
    ${boxes.map((box) => html`<${Box} key=${box.id} box=${box} hash=${box.id !== here && hashOf(box, session)} here=${box.id === here} />`)}
  </svg>`;
}

function Box({ box: { kind, label, x, y, width, height }, hash, here }) {
  const name = `${kind} ${label}`;
  const drawn = html`<g class=${`box ${kind} ${here ? "here" : ""}`} transform=${`translate(${x - width / 2} ${y - height / 2})`}>
    <rect width=${width} height=${height} rx="5" />
    <text class="kind" x="12" y="13">${kind}</text><text x="12" y="29">${label}</text></g>`;
  return hash ? html`<a href=${hash} aria-label=${name}>${drawn}</a>` : html`<g role="img" aria-label=${name}>${drawn}</g>`;
}

/** A curve through the middles between the points. */
function path([first, ...rest]) {
  const curves = rest.slice(0, -1).map(({ x, y }, index) => {
    const next = rest[index + 1];
    const end = index === rest.length - 2 ? next : { x: (x + next.x) / 2, y: (y + next.y) / 2 };
    return `Q${x} ${y} ${end.x} ${end.y}`;
  });
  return `M${first.x} ${first.y}${curves.join("") || `L${rest[0].x} ${rest[0].y}`}`;
}

/** @returns {string | null} where a box leads */
function hashOf({ id, kind }, session) {
  const name = id.slice(kind.length + 1);
  switch (kind) {
    case "workflow": return workflowHash(name);
    case "endpoint": return "#/backends";
    case "folder": return null;
    default: return configHash(session, kind === "user" ? `Users/${name}.json` : name);
  }
}
