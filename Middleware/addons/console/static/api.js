/** Calls of the console's API. Every call carries the session's token; a session that has ended shows Sign in. */
import { useCallback, useEffect, useState } from "./html.js";
import { learnServerTime } from "./parts/clock.js";
import { expireSession, token } from "./session.js";

/** A path or an address with its values encoded, as a template's tag. */
export const url = (parts, ...values) => parts.reduce((all, part, n) => all + encodeURIComponent(values[n - 1]) + part);

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
    response = await fetch(`api/${path}`, { method, headers, signal, cache: "no-store", credentials: "omit", body: JSON.stringify(body) });
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

/** @returns {Promise<any>} the JSON of the answer; null if it has none */
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
  const response = await request(path, { method: body ? "POST" : "GET", body, signal, accept: "text/event-stream" });
  onOpen?.(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      yield* blocks.map(parseEvent).filter(Boolean);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {string} block the lines of one event; a heartbeat, which begins with a colon, has none that count */
function parseEvent(block) {
  const event = { id: "", event: "message", data: "" };
  for (const [, name, value] of block.matchAll(/^(data|id|event): ?(.*)$/gm)) {
    event[name] = name === "data" && event.data ? `${event.data}\n${value}` : value;
  }
  if (!event.data) return null;
  try {
    event.data = JSON.parse(event.data);
  } catch {
    // Some events, such as [DONE], are words.
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
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    const put = (change) => !abort.signal.aborted && setState((old) => ({
      path, data: old.path === path ? old.data : null, error: null, loading: false, ...change }));
    setState((old) => ({ ...old, loading: true }));
    api("GET", path, undefined, abort.signal).then((data) => put({ data }), (error) => put({ error }));
    return () => abort.abort();
  }, [path, count]);
  const reload = useCallback(() => setCount((n) => n + 1), []);
  const change = useCallback((data) => setState((old) => ({ ...old, data: typeof data === "function" ? data(old.data) : data })), []);
  // Data of another path would be shown for a moment under the name of this one.
  const current = state.path === path;
  return { data: current ? state.data : null, error: current ? state.error : null, loading: state.loading || !current, reload, change };
}

/**
 * What a reader sets off, for a component: whether it is under way, and what went wrong with it. All but `run` and `busy` is for Problem.
 * @param {(...given: any[]) => Promise<any>} action
 */
export function useAction(action) {
  const idle = { busy: false, error: null, retry: null };
  const [state, setState] = useState(idle);
  const run = async (...given) => {
    setState({ ...idle, busy: true });
    try {
      await action(...given);
      setState(idle);
    } catch (error) {
      setState({ busy: false, error, retry: () => run(...given) });
    }
  };
  return { ...state, run, onClose: () => setState(idle) };
}
