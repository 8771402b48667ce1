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

/** @param {File | undefined} file */
async function openRunFile(file) {
  if (!file) return;
  const { name } = file;
  opened = await read(file).then((run) => ({ file: run, name, problem: null }), (problem) => ({ file: null, name, problem }));
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

/** @returns {string} what is wrong, "" if nothing is */
function flawOf(document) {
  const { format, run, spans } = document ?? {};
  if (/^wilmer-run\//.test(format) && format !== FORMAT) return `its format is ${format.slice(0, 20)}, expected ${FORMAT}`;
  if (format !== FORMAT) return `it has no "format": "${FORMAT}"`;
  if (typeof run?.id !== "string" || typeof run.started !== "number") return "its run has no id or no start";
  if (!Array.isArray(spans)) return "it has no list of spans";
  const wrong = spans.findIndex((row) => !isSpan(row));
  return wrong < 0 ? "" : `span ${wrong + 1} is not a list of id, parent, kind, name, start, duration, status, attributes and texts`;
}

function isSpan(row) {
  if (!Array.isArray(row)) return false;
  const [id, parent, kind, name, start, duration, status, attributes] = row;
  return [id, parent ?? 0].every(Number.isInteger) && [kind, name, status].every((text) => typeof text === "string")
    && [start, duration].every(Number.isFinite) && attributes !== null && typeof attributes === "object";
}

/** The button of the Runs page. */
export function OpenRunFile() {
  const input = useRef(null);
  const chosen = ({ target }) => {
    openRunFile(target.files[0]);
    target.value = "";
  };
  return html`
    <button onClick=${() => input.current.click()}>Open run file</button>
    <input type="file" accept=".json,application/json" hidden ref=${input} onChange=${chosen} tabindex="-1" aria-hidden="true" />`;
}

/** Open what is dropped on the page, from now on. */
export function acceptDroppedRunFiles() {
  const handle = (action) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    // The browser would leave the console for the file.
    event.preventDefault();
    action(event.dataTransfer.files[0]);
  };
  addEventListener("dragover", handle(() => {}));
  addEventListener("drop", handle(openRunFile));
}
