/** Where the names on the Workflows pages lead. */
import { hasPage } from "../../routes.js";
import { may } from "../../session.js";

/** @param {string} file such as `Workflows/demo/Coding.json` @param {string | null} [run] whose path is lit */
export function workflowHash(file, run) {
  const path = file.replace(/^Workflows\//, "").replace(/\.json$/, "");
  return `#/workflows/${path.split("/").map(encodeURIComponent).join("/")}${run ? `?run=${encodeURIComponent(run)}` : ""}`;
}

/** @param {string} file @returns {string} such as `demo/Coding` */
export function shortPath(file) {
  return file.replace(/^[^/]*\//, "").replace(/\.json$/, "");
}

/**
 * @param {object} session @param {string} file below the config root @param {number | null} [line]
 * @returns {string | null} the editor; null for who may not see it
 */
export function configHash(session, file, line) {
  if (!hasPage("config") || !may(session, "operator") || !file) return null;
  return `#/config?${new URLSearchParams(line ? { file, line: String(line) } : { file })}`;
}

/** @param {object} session @returns {string | null} */
export function backendsHash(session) {
  return hasPage("backends") && may(session, "all") ? "#/backends" : null;
}

/** @param {{kind: string, name: string, path: string, node: number}} use @returns {string} in words */
export function useText(use) {
  return {
    category: `category ${use.name} of routing ${shortPath(use.path)}`,
    model: `model ${use.name}`,
    default: `default of ${use.name}`,
    key: `${use.name} of ${shortPath(use.path)}`,
    settings: `${use.name} of ${shortPath(use.path)}`,
    workflow: `node ${use.node} of ${use.name}`,
  }[use.kind] ?? use.name;
}
