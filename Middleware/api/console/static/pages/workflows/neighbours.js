/** The map around one workflow: what leads to it, and where it leads. */
import { shortPath } from "./links.js";

/** @param {object} data a workflow of the API @returns {{boxes: object[], arrows: object[]}} */
export function neighbours(data) {
  const boxes = new Map();
  const arrows = new Map();
  const box = (kind, name, label) => {
    const id = `${kind}:${name}`;
    if (!boxes.has(id)) boxes.set(id, { id, kind, label });
    return id;
  };
  const arrow = (source, target, label) => {
    const key = `${source}\n${target}`;
    if (!arrows.has(key)) arrows.set(key, { source, target, labels: [] });
    if (label) arrows.get(key).labels.push(label);
  };
  const here = box("workflow", data.path, data.name);
  for (const use of data.used_by) {
    if (use.kind === "workflow") arrow(box("workflow", use.path, use.name), here, `node ${use.node}`);
    else if (use.kind === "category") arrow(box("routing", use.path, shortPath(use.path)), here, use.name);
    else if (use.kind === "settings") arrow(box("settings", use.path, shortPath(use.path)), here, use.name);
    else arrow(box("user", userOf(use), userOf(use)), here, use.name);
  }
  for (const node of data.nodes) {
    for (const child of node.children) {
      if (child.path) arrow(here, box("workflow", child.path, shortPath(child.path)), `node ${node.index}`);
    }
    for (const name of node.endpoints.filter((one) => !one.includes("{"))) arrow(here, box("endpoint", name, name), `node ${node.index}`);
  }
  return { boxes: [...boxes.values()], arrows: [...arrows.values()] };
}

const userOf = (use) => (use.kind === "key" ? shortPath(use.path) : use.name.split(":")[0]);
