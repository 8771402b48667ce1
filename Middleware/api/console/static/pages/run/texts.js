/** The texts of a span: those that came with the run, or, where one of them is long, all of them whole. */
import { useApi } from "../../api.js";
import { html } from "../../html.js";

const isLong = (value) => value !== null && typeof value === "object" && typeof value.long === "number";

/**
 * @param {string | null} runId null: a run file, whose texts are all there
 * @param {import("../../parts/spans.js").Span | null} span
 * @returns {{texts: {[name: string]: any}, error: Error | null, loading: boolean, reload: () => void}}
 */
export function useTexts(runId, span) {
  const values = span?.texts ?? {};
  const needed = runId !== null && Object.values(values).some(isLong);
  const { data, error, loading, reload } = useApi(needed ? `runs/${encodeURIComponent(runId)}/texts/${span.id}` : null);
  if (!needed) return { texts: values, error: null, loading: false, reload };
  return { texts: data ?? starts(values), error, loading, reload };
}

/** What can be shown until the whole texts are there. */
function starts(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, isLong(value) ? value.start ?? "" : value]));
}

const REASONS = {
  "facts only": html`When this run was made, only facts were kept on the disk. <a href="#/settings">Settings</a> has the switch
    <b>Keep texts on disk</b>; the newest runs have their texts in memory in any case.`,
  private: "The run is private: its request was encrypted, or its user has redactLogOutput. Its texts are shown to nobody but the key that made it.",
  "no key": "The texts are encrypted. Sign in with the key that made the run to read them.",
};

/** @param {{run: object}} props */
export function NotKept({ run }) {
  const reason = REASONS[run.texts] ?? (run.private ? REASONS.private : REASONS["facts only"]);
  return html`<div class="not-kept"><p>The texts of this run were not kept.</p><p class="note">${reason}</p></div>`;
}

/** @param {object} run @returns {boolean} whether there may be texts */
export function hasTexts(run) {
  return run.texts === undefined || run.texts === "kept" || run.texts === "ring";
}
