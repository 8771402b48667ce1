/** The filters of the list of runs: they stand in the address, so that a list can be bookmarked and gone back to. */
import { serverNow } from "../../parts/clock.js";

const PAGE_SIZE = 50;
const OLDER_SIZE = 100;

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
  const same = (name) => !query.get(name) || query.get(name) === run[name];
  const endpoint = query.get("endpoint");
  const words = query.get("q")?.toLowerCase();
  return ["status", "workflow", "user", "kind", "discussion"].every(same) && (!endpoint || run.endpoints.includes(endpoint))
    && (!words || ["id", "question", "answer", "error", "route", "workflow", "discussion"].some((name) => run[name]?.toLowerCase().includes(words)));
}

/** @param {URLSearchParams} query @param {{[name: string]: string}} changes @returns {string} the address of the list */
export function listHash(query, changes) {
  const next = new URLSearchParams(Object.entries({ ...Object.fromEntries(query), ...changes }).filter(([, value]) => value));
  return `#/runs${String(next) && `?${next}`}`;
}
