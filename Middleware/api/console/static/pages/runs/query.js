/** The filters of the list of runs: they stand in the address, so that a list can be bookmarked and gone back to. */
import { serverNow } from "../../parts/clock.js";

export const PAGE_SIZE = 50;
const OLDER_SIZE = 100;

export const STATUSES = ["running", "answered", "queued", "ok", "failed", "cancelled", "refused", "interrupted"];
export const KINDS = ["chat", "task", "playground", "replay", "again"];
/** The value in the address, the words, the hours. */
export const TIMES = [["", "any time", 0], ["1h", "last hour", 1], ["24h", "24 hours", 24], ["7d", "7 days", 168], ["30d", "30 days", 720]];

const PASSED_ON = ["status", "workflow", "endpoint", "user", "kind", "discussion", "q", "all"];

/** @param {URLSearchParams} query of the address @returns {boolean} */
export function isFiltered(query) {
  return ["time", ...PASSED_ON].some((name) => query.get(name));
}

/** @param {URLSearchParams} query of the address @param {string} [before] @returns {string} a path of the API */
export function listPath(query, before) {
  const asked = new URLSearchParams({ limit: String(before ? OLDER_SIZE : PAGE_SIZE) });
  for (const name of PASSED_ON) if (query.get(name)) asked.set(name, query.get(name));
  // Search in all texts is a way of searching, not a filter.
  if (!query.get("q")) asked.delete("all");
  const hours = TIMES.find(([value]) => value === query.get("time"))?.[2];
  // Whole minutes: the path must not be another one each time that the page is drawn.
  if (hours) asked.set("since", String((Math.floor(serverNow() / 60e6) - hours * 60) * 60e6));
  if (before) asked.set("before", before);
  return `runs?${asked}`;
}

/** The same for a run that the live stream told. @param {object} run @param {URLSearchParams} query */
export function matches(run, query) {
  const same = (name, value) => !query.get(name) || query.get(name) === value;
  if (!same("status", run.status) || !same("workflow", run.workflow) || !same("user", run.user) || !same("kind", run.kind)
    || !same("discussion", run.discussion)) return false;
  if (query.get("endpoint") && !run.endpoints.includes(query.get("endpoint"))) return false;
  const words = query.get("q")?.toLowerCase();
  return !words || [run.id, run.question, run.answer, run.error, run.route, run.workflow, run.discussion]
    .some((text) => text?.toLowerCase().includes(words));
}

/** @param {URLSearchParams} query @param {{[name: string]: string}} changes @returns {string} the address of the list */
export function listHash(query, changes = {}) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const text = next.toString();
  return text ? `#/runs?${text}` : "#/runs";
}
