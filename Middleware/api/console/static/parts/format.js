/** Numbers as they are read: the browser's locale and time zone, short units, and words for what nobody reported. */
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

/** @param {number | null | undefined} n @param {string} [none] */
export function count(n, none = NOT_REPORTED) {
  return n == null ? none : WHOLE.format(n);
}

/** @param {number} n @param {string} one @param {string} [many] @returns {string} such as `1 run`, `3 runs` */
export function counted(n, one, many = `${one}s`) {
  return `${WHOLE.format(n)} ${n === 1 ? one : many}`;
}

/** @param {number | null} tokens @param {number | null} us @param {string} [none] @returns {string} such as `54/s` */
export function speed(tokens, us, none = NOT_REPORTED) {
  if (tokens == null || !us || us < 1000) return none;
  const value = tokens / (us / SECOND);
  return `${value < 9.95 ? TENTHS.format(value) : WHOLE.format(Math.round(value))}/s`;
}

/** @param {number | null | undefined} n @param {string} [none] */
export function bytes(n, none = NOT_REPORTED) {
  if (n == null) return none;
  if (n < 1000) return `${n}${THIN}B`;
  if (n < 1e6) return `${TENTHS.format(n / 1e3)}${THIN}KB`;
  if (n < 1e9) return `${TENTHS.format(n / 1e6)}${THIN}MB`;
  return `${TENTHS.format(n / 1e9)}${THIN}GB`;
}

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  return whole ? PERCENT.format(part / whole) : PERCENT.format(0);
}

/** @param {number | null | undefined} us since 1970 @returns {string} the time, with the day unless it is today */
export function moment(us, none = NOT_REPORTED) {
  if (us == null) return none;
  const date = new Date(us / 1000);
  const time = TIME.format(date);
  return date.toDateString() === new Date().toDateString() ? time : `${DAY.format(date)} ${time}`;
}

/** @param {number} us since 1970 */
export function fullMoment(us) {
  return FULL.format(new Date(us / 1000));
}

/** A time with its full stamp as title. @param {{us: number | null | undefined, none?: string}} props */
export function Moment({ us, none = "-" }) {
  if (us == null) return none;
  return html`<time datetime=${new Date(us / 1000).toISOString()} title=${fullMoment(us)}>${moment(us)}</time>`;
}

/** @param {string} text @returns {string} with plain spaces, for accessible names */
export function plain(text) {
  return text.replace(/[\u202f\u00a0]/g, " ");
}

/** @param {string} id @returns {string} the first 8 characters of a run's id */
export function shortId(id) {
  return id.slice(0, 8);
}
