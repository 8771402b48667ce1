/** The map: boxes that dagre places, drawn as an SVG of our own, and the same as a table. */
import { html, useEffect, useId, useMemo, useState } from "../../html.js";
import { Problem } from "../../parts/alert.js";
import { backendsHash, configHash, workflowHash } from "./links.js";

const HEIGHT = 38;
const LETTER = 7.4;
const MARGIN = 16;

/** @param {{boxes: object[], arrows: object[], session: object, here?: string}} props `here`: the box of this page */
export function WorkflowMap({ boxes, arrows, session, here }) {
  const [table, setTable] = useState(false);
  const { placed, error } = usePlaces(boxes, arrows);
  return html`
    <${Problem} error=${error} />
    ${placed && html`<figure class="map" aria-label="Map"><${Drawing} placed=${placed} session=${session} here=${here} /></figure>`}
    <p class="actions"><button type="button" aria-expanded=${String(table)} onClick=${() => setTable(!table)}>Map as table</button></p>
    ${table && html`<${MapTable} boxes=${boxes} arrows=${arrows} session=${session} />`}`;
}

/** Where dagre puts the boxes. It is loaded when a map is shown first. */
function usePlaces(boxes, arrows) {
  const [state, setState] = useState({ placed: null, error: null });
  const words = useMemo(() => JSON.stringify([boxes, arrows]), [boxes, arrows]);
  useEffect(() => {
    let left = false;
    import("@dagrejs/dagre").then(
      (dagre) => !left && setState({ placed: place(dagre.default ?? dagre, boxes, arrows), error: null }),
      () => !left && setState({ placed: null, error: { message: "The map cannot be drawn, because a file of it is missing. The table has the same." } }),
    );
    return () => { left = true; };
  }, [words]);
  return state;
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

function Drawing({ placed, session, here }) {
  const id = useId();
  return html`<svg width=${placed.width} height=${placed.height} viewBox=${`0 0 ${placed.width} ${placed.height}`}>
    <defs><marker id=${id} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path class="tip" d="M0 0 8 4 0 8z" /></marker></defs>
    <g aria-hidden="true">${placed.arrows.map((arrow) => html`<path class="arrow" d=${path(arrow.points)} marker-end=${`url(#${id})`}>
      ${arrow.labels.length > 0 && html`<title>${arrow.labels.join(", ")}</title>`}</path>`)}</g>
    ${placed.boxes.map((box) => html`<${Box} key=${box.id} box=${box} hash=${hashOf(box, session)} here=${box.id === here} />`)}
  </svg>`;
}

function Box({ box, hash, here }) {
  const name = `${box.kind} ${box.label}`;
  const drawn = html`<g class=${`box ${box.kind} ${here ? "here" : ""}`} transform=${`translate(${box.x - box.width / 2} ${box.y - box.height / 2})`}>
    <rect width=${box.width} height=${box.height} rx="5" />
    <text class="kind" x="12" y="13">${box.kind}</text><text x="12" y="29">${box.label}</text></g>`;
  return hash && !here ? html`<a href=${hash} aria-label=${name}>${drawn}</a>` : html`<g role="img" aria-label=${name}>${drawn}</g>`;
}

function path(points) {
  const [first, ...rest] = points;
  const middle = rest.slice(0, -1).map((point, index) => {
    const next = rest[index + 1];
    const end = index === rest.length - 2 ? next : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 };
    return `Q${point.x} ${point.y} ${end.x} ${end.y}`;
  });
  return `M${first.x} ${first.y}${middle.length ? middle.join("") : `L${rest[0].x} ${rest[0].y}`}`;
}

/** @returns {string | null} where a box leads */
function hashOf(box, session) {
  const name = box.id.slice(box.kind.length + 1);
  if (box.kind === "workflow") return workflowHash(name);
  if (box.kind === "endpoint") return backendsHash(session);
  if (box.kind === "user") return configHash(session, `Users/${name}.json`);
  return box.kind === "folder" ? null : configHash(session, name);
}

function MapTable({ boxes, arrows, session }) {
  const byId = new Map(boxes.map((box) => [box.id, box]));
  const cell = (label, box) => {
    const hash = hashOf(box, session);
    return html`<td role="cell" data-label=${label}><span class="quiet-text">${box.kind}</span> ${hash ? html`<a href=${hash}>${box.label}</a>` : box.label}</td>`;
  };
  return html`<table class="cards" role="table" aria-label="Map as table">
    <thead role="rowgroup"><tr role="row">${["From", "To", "For"].map((name) => html`<th role="columnheader" scope="col">${name}</th>`)}</tr></thead>
    <tbody role="rowgroup">${arrows.map((arrow) => html`<tr role="row">
      ${cell("From", byId.get(arrow.source))}${cell("To", byId.get(arrow.target))}
      <td role="cell" data-label="For">${arrow.labels.join(", ") || "-"}</td></tr>`)}</tbody></table>`;
}
