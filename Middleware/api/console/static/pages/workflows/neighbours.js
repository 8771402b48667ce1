/** The map around one workflow: what leads to it, and where it leads. */
import { shortPath } from "./links.js";

/** @param {object} data a workflow of the API @returns {{boxes: object[], arrows: object[]}} */
export function neighbours(data) {
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
