/** Numbers as they are read: the browser's locale and time zone, short units, and words for what was not reported. */
import { html } from "../html.js";

export const NOT_REPORTED = "not reported";

const WHOLE = new Intl.NumberFormat();
const TENTHS = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const PERCENT = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 0 });
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
// A narrow space that does not break keeps a number and its unit on one line.
const THIN = "\u202f";
const SECOND = 1e6;

/**
 * @param {number | null | undefined} us microseconds
 * @param {string} [none] what stands for null
 * @returns {string} such as `45 ms`, `1.2 s`, `2 min 05 s`
 */
export function duration(us, none = NOT_REPORTED) {
  if (us == null) return none;
  if (us < 50) return `0${THIN}s`;
  if (us < 950) return `${TENTHS.format(us / 1000)}${THIN}ms`;
  if (us < 99_500) return `${WHOLE.format(Math.round(us / 1000))}${THIN}ms`;
  if (us < 59.95 * SECOND) return `${TENTHS.format(us / SECOND)}${THIN}s`;
  const seconds = Math.round(us / SECOND);
  const pad = (n) => String(n).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${THIN}min ${pad(seconds % 60)}${THIN}s`;
  const minutes = Math.round(seconds / 60);
  return `${WHOLE.format(Math.floor(minutes / 60))}${THIN}h ${pad(minutes % 60)}${THIN}min`;
}

export function count(n, none = NOT_REPORTED) {
  return n == null ? none : WHOLE.format(n);
}

/** @returns {string} such as `1 run`, `3 runs` */
export function counted(n, one) {
  return `${WHOLE.format(n)} ${one}${n === 1 ? "" : "s"}`;
}

/** @param {number | null} perSecond @returns {string} such as `54/s` */
export function rate(perSecond, none = NOT_REPORTED) {
  return perSecond == null ? none : `${(perSecond < 9.95 ? TENTHS : WHOLE).format(perSecond < 9.95 ? perSecond : Math.round(perSecond))}/s`;
}

/** The rate of so many tokens in so many microseconds. @param {number | null} tokens @param {number | null} us */
export function speed(tokens, us, none) {
  return rate(tokens == null || !us || us < 1000 ? null : tokens / (us / SECOND), none);
}

export function bytes(n, none = NOT_REPORTED) {
  if (n == null) return none;
  if (n < 1000) return `${n}${THIN}B`;
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"]].find(([least]) => n >= least);
  return `${TENTHS.format(n / size)}${THIN}${unit}`;
}

export function percent(part, whole) {
  return PERCENT.format(whole ? part / whole : 0);
}

/** A time, with the day unless it is today, and its full stamp as title. @param {{us: number | null | undefined}} props */
export function Moment({ us }) {
  if (us == null) return "-";
  const date = new Date(us / 1000);
  const today = date.toDateString() === new Date().toDateString();
  return html`<time datetime=${date.toISOString()} title=${FULL.format(date)}>${today ? "" : `${DAY.format(date)} `}${TIME.format(date)}</time>`;
}

/** @param {string} text @returns {string} with plain spaces, for accessible names */
export function plain(text) {
  return text.replace(/[\u202f\u00a0]/g, " ");
}

/** @param {string} id @returns {string} the first 8 characters of a run's id */
export function shortId(id) {
  return id.slice(0, 8);
}

/** @param {any} value @returns {string} a text as it is, nothing as "", anything else as JSON */
export function asText(value) {
  return typeof value === "string" ? value : value == null ? "" : json(value);
}

/** @param {any} value @returns {string} */
export function json(value) {
  return JSON.stringify(value, null, 2) ?? "";
}
