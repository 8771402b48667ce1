/** What the parts of the page Configuration know together: unsaved texts, and the findings of all files. */
import { api, url, useAction } from "../../api.js";
import { useState } from "../../html.js";
import { counted } from "../../parts/format.js";

/**
 * Texts that are not saved, by their files: they wait here while another file or page is looked at. `base`: of the file as
 * it was when it was opened, so that a save notices what others changed since.
 * @type {Map<string, {text: string, base: string}>}
 */
export const drafts = new Map();

window.addEventListener("beforeunload", (event) => drafts.size && event.preventDefault());

/** @param {string} file @param {number | null} [line] */
export const fileAddress = (file, line) => url`#/config?file=${file}` + (line ? `&line=${line}` : "");

/**
 * @typedef {{severity: "error" | "warning" | "note", file: string, line: number | null, column: number | null,
 *   message: string, expected: string, suggestion: string, text: string}} Finding `text`: in words, added here
 * @param {Finding} finding
 */
function inWords(finding) {
  const { message, expected, suggestion } = finding;
  const hints = [expected && ` Expected: ${expected}.`, suggestion && ` Did you mean '${suggestion}'?`].filter(Boolean).join("");
  return { ...finding, text: (hints && !/[.?]$/.test(message) ? `${message}.` : message) + hints };
}

/** @param {Finding[]} findings @returns {{all: number, errors: number, words: string}} */
export function countsOf(findings) {
  const of = (severity) => findings.filter((one) => one.severity === severity).length;
  const words = ["error", "warning", "note"].map((one) => of(one) && counted(of(one), one)).filter(Boolean).join(", ");
  return { all: findings.length, errors: of("error"), words };
}

const NONE = [];

/** Findings by file, kept while other pages are looked at. @type {Map<string, Finding[]>} */
const known = new Map();

/** The findings of all files that were checked, the newest of each. */
export function useFindings() {
  const [, redraw] = useState(0);
  const [said, setSaid] = useState("");
  const checking = useAction(async () => {
    setSaid("");
    const { findings, files, seconds } = await api("POST", "config/check-all", {});
    // What is not saved was not in this check.
    for (const file of known.keys()) if (!drafts.has(file)) known.delete(file);
    for (const one of findings) if (!drafts.has(one.file)) known.set(one.file, [...known.get(one.file) ?? [], inWords(one)]);
    setSaid(`${counted(files, "file")} in ${seconds.toFixed(1)} s: ${countsOf(findings).words || "nothing wrong"}`);
  });
  return {
    checking,
    said: checking.busy ? "checking all files …" : said,
    all: [...known.values()].flat(),
    counts: new Map([...known].map(([file, findings]) => [file, countsOf(findings)])),
    /** @param {string} file */
    of: (file) => known.get(file) ?? NONE,
    /** @param {string} file @param {Finding[]} findings */
    know(file, findings) {
      known.set(file, findings.map(inWords));
      redraw((n) => n + 1);
    },
  };
}
