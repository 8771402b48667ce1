/** Who is signed in. An operator's token stays in this browser, a key's token goes with the tab. */
import { navigate } from "./routes.js";

/** @typedef {{role: "own" | "all" | "operator", users: string[] | null, expires: number | null, mode: "on" | "edit",
 *             recording: "off" | "facts" | "texts", version: string}} Session */

// Two servers below different paths of one host share the browser's storage.
const NAME = `wilmer-console:${location.pathname}`;
const RANK = { own: 0, all: 1, operator: 2 };

/** @returns {string | null} */
export function token() {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME);
}

/** @param {string} value @param {Session["role"]} role */
export function keepToken(value, role) {
  forgetToken();
  (role === "operator" ? localStorage : sessionStorage).setItem(NAME, value);
}

export function forgetToken() {
  localStorage.removeItem(NAME);
  sessionStorage.removeItem(NAME);
}

/** @type {(reason: string) => void} what the shell does when a session has ended */
let ended = () => {};
export const onSessionEnd = (listener) => { ended = listener; };

/** Called when the server no longer knows the token. */
export function expireSession() {
  forgetToken();
  ended("This session has ended. Sign in again.");
}

/**
 * The code of a sign-in link. It is taken out of the address at once, so that no bookmark or screenshot has it.
 * @returns {string | null}
 */
export function takeSignInCode() {
  const match = /^#signin=([^&]+)/.exec(location.hash);
  if (!match) return null;
  navigate("#/runs", { replace: true });
  return decodeURIComponent(match[1]);
}

/** @param {Session} session @param {Session["role"]} [role] the least role */
export function may(session, role = "own") {
  return RANK[session.role] >= RANK[role];
}
