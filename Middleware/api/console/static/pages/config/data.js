/** What the parts of the page Configuration know together: unsaved texts, and the findings of all files. */
import { api } from "../../api.js";
import { useEffect, useState } from "../../html.js";
import { counted } from "../../parts/format.js";

/**
 * Texts that are not saved, by their files: they wait here while another file or page is looked at. `base`: of the file as
 * it was when it was opened, so that a save notices what others changed since.
 * @type {Map<string, {text: string, base: string}>}
 */
export const drafts = new Map();

window.addEventListener("beforeunload", (event) => {
  if (drafts.size) event.preventDefault();
});

/**
 * @typedef {{severity: "error" | "warning" | "note", file: string, line: number | null, column: number | null,
 *   message: string, expected: string, suggestion: string, text: string}} Finding `text`: in words, added here
 */

/** @param {string} file @param {number | null} [line] */
export function fileAddress(file, line) {
  return `#/config?${new URLSearchParams(line ? { file, line: String(line) } : { file })}`;
}

/** @param {Finding} finding */
function inWords(finding) {
  const { message, expected, suggestion } = finding;
  const end = (expected || suggestion) && !/[.?]$/.test(message) ? "." : "";
  return { ...finding, text: `${message}${end}${expected ? ` Expected: ${expected}.` : ""}${suggestion ? ` Did you mean '${suggestion}'?` : ""}` };
}

/** @param {Finding[]} findings @returns {{errors: number, warnings: number, notes: number, words: string}} */
export function countsOf(findings) {
  const of = (severity) => findings.filter((one) => one.severity === severity).length;
  const [errors, warnings, notes] = [of("error"), of("warning"), of("note")];
  const words = [[errors, "error"], [warnings, "warning"], [notes, "note"]].filter(([n]) => n).map(([n, word]) => counted(n, word)).join(", ");
  return { errors, warnings, notes, words };
}

const NONE = [];

/** Findings by file, kept while other pages are looked at. @type {Map<string, Finding[]>} */
const known = new Map();

/** The findings of all files that were checked, the newest of each. */
export function useEveryFinding() {
  const [, redraw] = useState(0);
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  const [error, setError] = useState(null);
  useEffect(() => setSaid(""), []);
  const check = async () => {
    setBusy(true);
    setError(null);
    setSaid("checking all files …");
    try {
      const { findings, files, seconds } = await api("POST", "config/check-all", {});
      // What is not saved was not in this check.
      for (const file of known.keys()) if (!drafts.has(file)) known.delete(file);
      for (const one of findings) if (!drafts.has(one.file)) known.set(one.file, [...known.get(one.file) ?? [], inWords(one)]);
      setSaid(`${counted(files, "file")} in ${seconds.toFixed(1)} s: ${countsOf(findings).words || "nothing wrong"}`);
    } catch (problem) {
      setSaid("");
      setError(problem);
    }
    setBusy(false);
  };
  return {
    busy, said, error, check,
    close: () => setError(null),
    findings: [...known.values()].flat(),
    counts: new Map([...known].map(([file, findings]) => [file, countsOf(findings)])),
    /** @param {string} file @returns {Finding[]} */
    of: (file) => known.get(file) ?? NONE,
    /** @param {string} file @param {Finding[]} findings */
    know(file, findings) {
      known.set(file, findings.map(inWords));
      redraw((n) => n + 1);
    },
  };
}
