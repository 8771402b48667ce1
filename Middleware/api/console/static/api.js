/** Calls of the console's API. Every call carries the session's token; a session that has ended shows Sign in. */
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { learnServerTime } from "./parts/clock.js";
import { expireSession, token } from "./session.js";

const BASE = "api/";

/** An answer that is not a success, or no answer at all (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{message?: string, type?: string, where?: string}} error
   * @param {object | null} body the whole answer: some errors carry more, such as both texts of a conflict
   */
  constructor(status, error, body = null) {
    super(error.message || `The server answered with status ${status}.`);
    this.status = status;
    this.type = error.type || "";
    this.where = error.where || "";
    this.body = body;
  }
}

/**
 * @param {string} path below `/console/api/`, with its query
 * @param {{method?: string, body?: object, signal?: AbortSignal, accept?: string}} how
 * @returns {Promise<Response>} an answer that is a success
 */
export async function request(path, { method = "GET", body, signal, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  const sent = token();
  if (sent) headers.Authorization = `Bearer ${sent}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(BASE + path, {
      method, headers, signal, cache: "no-store", credentials: "omit",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: "The server cannot be reached. Is WilmerAI still running?", where: path });
  }
  learnServerTime(response.headers.get("Date"));
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  // Another session than the one that the call was made with must not be ended by its answer.
  if (response.status === 401 && sent && sent === token()) expireSession();
  throw new ApiError(response.status, answer?.error ?? {}, answer);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the JSON of the answer; null if it has none
 */
export async function api(method, path, body, signal) {
  const response = await request(path, { method, body, signal });
  return response.status === 204 ? null : response.json();
}

/**
 * Read a stream of server-sent events. EventSource cannot send a token, so the stream is read by fetch.
 * @param {string} path
 * @param {object | undefined} body a body makes the call a POST
 * @param {AbortSignal} signal
 * @param {(response: Response) => void} [onOpen]
 * @returns {AsyncGenerator<{id: string, event: string, data: any}>}
 */
export async function* stream(path, body, signal, onOpen) {
  const method = body === undefined ? "GET" : "POST";
  const response = await request(path, { method, body, signal, accept: "text/event-stream" });
  onOpen?.(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parseEvent(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {string} block the lines of one event */
function parseEvent(block) {
  const event = { id: "", event: "message", data: null };
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    // A line that begins with a colon is a heartbeat.
    if (colon < 1) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    const name = line.slice(0, colon);
    if (name === "data") data.push(value);
    else if (name === "id" || name === "event") event[name] = value;
  }
  if (!data.length) return null;
  const text = data.join("\n");
  try {
    event.data = JSON.parse(text);
  } catch {
    event.data = text;
  }
  return event;
}

/**
 * What a GET returns, for a component. A newer path replaces an older one; its late answer is dropped.
 * @param {string | null} path null asks nothing
 * @returns {{data: any, error: ApiError | null, loading: boolean, reload: () => void, change: (data: any) => void}}
 */
export function useApi(path) {
  const [state, setState] = useState({ path: null, data: null, error: null, loading: true });
  const [count, setCount] = useState(0);
  const aborter = useRef(null);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    aborter.current = abort;
    setState((old) => ({ ...old, loading: true }));
    api("GET", path, undefined, abort.signal).then(
      (data) => !abort.signal.aborted && setState({ path, data, error: null, loading: false }),
      (error) => !abort.signal.aborted
        && setState((old) => ({ path, data: old.path === path ? old.data : null, error, loading: false })),
    );
    return () => abort.abort();
  }, [path, count]);
  const reload = useCallback(() => setCount((n) => n + 1), []);
  const change = useCallback((data) => setState((old) => (
    { ...old, data: typeof data === "function" ? data(old.data) : data })), []);
  // Data of another path would be shown for a moment under the name of this one.
  const current = state.path === path;
  return { data: current ? state.data : null, error: current ? state.error : null, loading: state.loading || !current, reload, change };
}
