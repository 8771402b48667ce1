/** Run files: read in the browser, never sent. The newest one that was opened is shown at `#/file`. */
import { html, useRef } from "../html.js";
import { navigate } from "../routes.js";

/**
 * @typedef {object} RunFile
 * @property {"wilmer-run/1"} format
 * @property {object} run
 * @property {any[][]} spans
 * @property {Record<string, Record<string, unknown>> | null} [texts] long texts, by the id of their span
 * @property {object} [explanation]
 */

const FORMAT = "wilmer-run/1";
// An export with all texts has 16 MB of them, twice that in JSON at the worst.
const LONGEST = 64 * 1024 * 1024;

/** @type {{file: RunFile | null, name: string, problem: Error | null}} */
let opened = { file: null, name: "", problem: null };

/** Return what was opened last. */
export const openedRun = () => opened;

/** @param {File} file */
export async function openRunFile(file) {
  try {
    opened = { file: await read(file), name: file.name, problem: null };
  } catch (problem) {
    opened = { file: null, name: file.name, problem };
  }
  // A second file is another page of the history.
  navigate(`#/file?opened=${Date.now()}`);
}

/** @param {File} file @returns {Promise<RunFile>} */
async function read(file) {
  if (file.size > LONGEST) throw new Error(`${file.name} has ${Math.round(file.size / 1e6)} MB. A run file has at most 64 MB.`);
  let document;
  try {
    document = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON. A run file is what the button Export of a run makes.`);
  }
  const flaw = flawOf(document);
  if (flaw) throw new Error(`${file.name} is not a run file that this console can show: ${flaw}.`);
  return document;
}

/** @param {any} document @returns {string} what is wrong, "" if nothing is */
export function flawOf(document) {
  const format = document?.format;
  if (typeof format === "string" && format.startsWith("wilmer-run/") && format !== FORMAT) return `its format is ${format.slice(0, 20)}, expected ${FORMAT}`;
  if (format !== FORMAT) return `it has no "format": "${FORMAT}"`;
  if (typeof document.run?.id !== "string" || typeof document.run.started !== "number") return "its run has no id or no start";
  if (!Array.isArray(document.spans)) return "it has no list of spans";
  const wrong = document.spans.findIndex((row) => !isSpan(row));
  return wrong < 0 ? "" : `span ${wrong + 1} is not a list of id, parent, kind, name, start, duration, status, attributes and texts`;
}

/** @param {any} row */
function isSpan(row) {
  if (!Array.isArray(row) || row.length < 8) return false;
  const [id, parent, kind, name, start, duration, status, attributes] = row;
  return Number.isInteger(id) && (parent === null || Number.isInteger(parent)) && [kind, name, status].every((text) => typeof text === "string")
    && [start, duration].every(Number.isFinite) && attributes !== null && typeof attributes === "object";
}

/** The button of the Runs page. */
export function OpenRunFile() {
  const input = useRef(null);
  const chosen = ({ target }) => {
    if (target.files[0]) openRunFile(target.files[0]);
    target.value = "";
  };
  return html`
    <button type="button" onClick=${() => input.current.click()}>Open run file</button>
    <input type="file" accept=".json,application/json" hidden ref=${input} onChange=${chosen} tabindex="-1" aria-hidden="true" />`;
}

/** Open what is dropped on the page, from now on. */
export function acceptDroppedRunFiles() {
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  // Without this the browser would leave the console for the file.
  const over = (event) => carries(event) && event.preventDefault();
  const drop = (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files[0]) openRunFile(event.dataTransfer.files[0]);
  };
  addEventListener("dragover", over);
  addEventListener("drop", drop);
}
