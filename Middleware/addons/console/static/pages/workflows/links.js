/** Where the names on the Workflows pages lead. */
import { url } from "../../api.js";
import { html } from "../../html.js";
import { may } from "../../session.js";

/** @param {string} file such as `Workflows/demo/Coding.json` @returns {string} such as `workflows/demo/Coding`, in the API and on the page */
export function workflowPath(file) {
  return `workflows/${file.replace(/^Workflows\//, "").replace(/\.json$/, "").split("/").map(encodeURIComponent).join("/")}`;
}

/** @param {string} file @param {string | null} [run] whose path is lit */
export function workflowHash(file, run) {
  return `#/${workflowPath(file)}${run ? url`?run=${run}` : ""}`;
}

/** @param {string} file @returns {string} such as `demo/Coding` */
export function shortPath(file) {
  return file.replace(/^[^/]*\//, "").replace(/\.json$/, "");
}

/**
 * @param {object | null} session @param {string} file below the config root @param {number | null} [line]
 * @returns {string | null} the editor; null for who may not see it
 */
export function configHash(session, file, line) {
  if (!session || !may(session, "operator") || !file) return null;
  return url`#/config?file=${file}` + (line ? `&line=${line}` : "");
}

/** A name that leads somewhere, for who may go there. @param {string | null} hash */
export const link = (hash, name) => (hash ? html`<a href=${hash}>${name}</a>` : name);

/** @param {{kind: string, name: string, path: string, node: number}} use @returns {string} in words */
export function useText({ kind, name, path, node }) {
  return {
    category: `category ${name} of routing ${shortPath(path)}`,
    model: `model ${name}`,
    default: `default of ${name}`,
    key: `${name} of ${shortPath(path)}`,
    settings: `${name} of ${shortPath(path)}`,
    workflow: `node ${node} of ${name}`,
  }[kind] ?? name;
}
