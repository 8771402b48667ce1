/** The texts of a span: those that came with the run, or, where one of them is long, all of them whole. */
import { url, useApi } from "../../api.js";
import { html } from "../../html.js";

const isLong = (value) => typeof value?.long === "number";

/**
 * @param {string | null} runId null: a run file, whose texts are all there
 * @param {import("../../parts/spans.js").Span | null} span
 * @returns {{texts: {[name: string]: any}, error: Error | null, reload: () => void}}
 */
export function useTexts(runId, span) {
  const values = span?.texts ?? {};
  const needed = runId !== null && Object.values(values).some(isLong);
  const { data, error, reload } = useApi(needed ? url`runs/${runId}/texts/${span.id}` : null);
  // Until the whole texts are there, their beginnings can be shown.
  const starts = () => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, isLong(value) ? value.start ?? "" : value]));
  return { texts: needed ? data ?? starts() : values, error, reload };
}

export function NotKept({ run }) {
  return html`<div><p>The texts of this run were not kept.</p><p class="note">${run.texts === "private" || run.private
    ? "The run is private: its request was encrypted, or its user has redactLogOutput. Only the key that made it can see its texts."
    : html`When this run was made, only facts were kept on the disk. <a href="#/settings">Settings</a> has the
    switch <b>Keep texts on disk</b>; the newest runs have their texts in memory in any case.`}</p></div>`;
}

/** @param {object} run @returns {boolean} whether there may be texts */
export function hasTexts(run) {
  return [undefined, "kept", "ring"].includes(run.texts);
}
