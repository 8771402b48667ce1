/**
 * Calls of the console's API. Each carries the session's token, which only a server gets that has just proved to know the
 * session; a session that has ended shows Sign in.
 */
import { useCallback, useEffect, useState } from "./html.js";
import { learnServerTime } from "./parts/clock.js";
import { challenge } from "./proof.js";
import { expireSession, token } from "./session.js";

// How long a proof holds if no connection is lost meanwhile: the calls of one view share it.
const PROOF_MS = 1000;
// Between two tries, as the server's Retry-After says.
export const AGAIN_MS = 3000;
/** The type of the error of a server that has not begun the session. */
export const UNPROVED = "unproved";

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
  // A sign-in is sent to whatever answers.
  const sent = path === "session" && method === "POST" ? null : token();
  if (sent) {
    await trust(sent);
    signal?.throwIfAborted();
    headers.Authorization = `Bearer ${sent}`;
  }
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await send(path, { method, headers, signal, body: JSON.stringify(body) });
  learnServerTime(response.headers.get("Date"));
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  // The answer must not end another session than that of the call.
  if (response.status === 401 && sent && sent === token()) expireSession();
  throw new ApiError(response.status, answer?.error ?? {}, answer);
}

async function send(path, how) {
  try {
    return await fetch(`api/${path}`, { cache: "no-store", credentials: "omit", ...how });
  } catch (error) {
    throw lost(path, error, how.signal);
  }
}

/** The error of a failed call: the browser's if the page ended it, or for what is no JSON. */
function lost(path, error, signal) {
  if (signal?.aborted) return error;
  distrust();
  return error instanceof SyntaxError ? error
    : new ApiError(0, { message: "The server cannot be reached. Is WilmerAI still running?", where: path });
}

// The token whose session the server has proved to know, until when, and the proof that is asked for.
let trusted = { token: "", until: 0 };
let asked = { token: "", proof: null };
let losses = 0;

/** A connection was lost, so that another program may answer now. */
function distrust() {
  losses += 1;
  trusted = { token: "", until: 0 };
}

/** Let the server prove that it has begun the session, unless it just did. Throws ApiError if it does not. */
async function trust(value) {
  while (trusted.token !== value || performance.now() >= trusted.until) {
    if (asked.token !== value) {
      const proof = prove(value).finally(() => { asked = { token: "", proof: null }; });
      asked = { token: value, proof };
    }
    await asked.proof;
  }
}

async function prove(value) {
  const one = challenge(value);
  if (!one) {
    if (value === token()) expireSession();
    throw new ApiError(401, { message: "This session has ended. Sign in again." });
  }
  const before = losses;
  // A redirect would lead to a server that nobody has named.
  const response = await send("session/proof", { method: "POST", redirect: "error", body: JSON.stringify(one.question),
    headers: { "Content-Type": "application/json" } });
  if (!response.ok || !one.isProof(await response.json().catch(() => null))) {
    throw new ApiError(0, { type: UNPROVED, message: "What answers at this address does not know this session. Is another program running there?" });
  }
  // If a connection was lost, another program may have come after the proof.
  if (losses === before) trusted = { token: value, until: performance.now() + PROOF_MS };
}

/** What may do all that the page may needs a proof of its own. */
async function trustAnew() {
  const value = token();
  distrust();
  if (value) await trust(value);
}

/** Load the page again. */
export async function renew() {
  await trustAnew();
  location.reload();
}

/** @returns {Promise<any>} the JSON of the answer; null if it has none */
export async function api(method, path, body, signal) {
  const response = await request(path, { method, body, signal });
  if (response.status === 204) return null;
  // The connection may be lost in the middle of the answer.
  return response.json().catch((error) => { throw lost(path, error, signal); });
}

/**
 * Read a stream of server-sent events by fetch: EventSource cannot send a token.
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
      if (done) {
        distrust();
        return;
      }
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      yield* blocks.map(parseEvent).filter(Boolean);
    }
  } catch (error) {
    if (!signal.aborted) distrust();
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {string} block the lines of one event; a heartbeat begins with a colon and has none that count */
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

/** Call `retry` a little after the server could not be reached. */
export function useRecovery(error, retry) {
  useEffect(() => {
    if (error?.status !== 0) return undefined;
    const timer = setTimeout(retry, AGAIN_MS);
    return () => clearTimeout(timer);
  }, [error]);
}

/** What `ask` returns for `key`; asked again while the server cannot be reached. */
function useAsked(key, ask) {
  const [state, setState] = useState({ key: null, data: null, error: null, loading: true });
  const [count, setCount] = useState(0);
  useEffect(() => {
    if (key === null) return undefined;
    const abort = new AbortController();
    const put = (change) => !abort.signal.aborted && setState((old) => ({
      key, data: old.key === key ? old.data : null, error: null, loading: false, ...change }));
    setState((old) => ({ ...old, loading: true }));
    ask(abort.signal).then((data) => put({ data }), (error) => put({ error }));
    return () => abort.abort();
  }, [key, count]);
  const reload = useCallback(() => setCount((n) => n + 1), []);
  const change = useCallback((data) => setState((old) => ({ ...old, data: typeof data === "function" ? data(old.data) : data })), []);
  useRecovery(state.error, reload);
  // Data of another key would be shown for a moment under the name of this one.
  const current = state.key === key;
  return { data: current ? state.data : null, error: current ? state.error : null, loading: state.loading || !current, reload, change };
}

/**
 * What a GET returns, for a component. A late answer of an older path is dropped.
 * @param {string | null} path null asks nothing
 * @returns {{data: any, error: ApiError | null, loading: boolean, reload: () => void, change: (data: any) => void}}
 */
export const useApi = (path) => useAsked(path, (signal) => api("GET", path, undefined, signal));

// By their names. One that is there needs no server.
const modules = new Map();

/** As `useApi`, for a module; `missing` is the text of the error, with status 404, without its file. */
export const useModule = (name, importing, missing) => useAsked(name, async () => {
  if (!modules.has(name)) {
    await trustAnew();
    modules.set(name, await importing().catch(() => { throw new ApiError(404, { message: missing }); }));
  }
  return modules.get(name);
});

/**
 * What a reader sets off: whether it is under way, and what went wrong. All but `run` and `busy` is for Problem.
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
