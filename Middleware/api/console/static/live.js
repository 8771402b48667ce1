/** The live stream: one for each visible tab, closed while the tab is hidden. */
import { ApiError, api, stream } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

/** @typedef {{type: "hello" | "run" | "span" | "live" | "gone" | "reset", data: any}} LiveEvent */

// As the server's Retry-After says; also the time between two tries when the connection was lost.
const AGAIN_MS = 3000;

const subscribers = new Set();
const watchers = new Set();
let state = "paused";
/** @type {AbortController | null} */
let current = null;

function setState(next) {
  if (state === next) return;
  state = next;
  for (const watcher of watchers) watcher(next);
}

/** @returns {"live" | "paused" | "reconnecting"} */
export function useLiveState() {
  const [value, setValue] = useState(state);
  useEffect(() => {
    watchers.add(setValue);
    setValue(state);
    return () => watchers.delete(setValue);
  }, []);
  return value;
}

/**
 * Have the events of the server while the component is shown and the tab visible.
 * @param {(event: LiveEvent) => void} handler `reset`: events were missed, so what is shown must be read again
 * @param {{after?: number | null, run?: string}} [what] `after`: the number of the last event that is known already,
 *     null as long as it is not known; `run`: events of this run alone, with its spans and texts
 */
export function useEvents(handler, { after, run } = {}) {
  const latest = useRef(handler);
  latest.current = handler;
  const ready = after !== null;
  useEffect(() => {
    if (!ready) return undefined;
    const subscriber = { after, run, handle: (event) => latest.current(event) };
    subscribers.add(subscriber);
    restart();
    return () => {
      subscribers.delete(subscriber);
      restart();
    };
  }, [ready, run]);
}

function restart() {
  current?.abort();
  current = null;
  const subscriber = [...subscribers].at(-1);
  if (!subscriber || document.hidden) {
    setState("paused");
    return;
  }
  current = new AbortController();
  keepOpen(subscriber, current.signal);
}

document.addEventListener("visibilitychange", restart);

async function keepOpen(subscriber, signal) {
  while (!signal.aborted) {
    try {
      await follow(subscriber, signal);
    } catch (error) {
      if (signal.aborted) return;
      setState("reconnecting");
      // A session that has ended shows Sign in, and a new one begins a new stream.
      if (error instanceof ApiError && [400, 401, 403, 404].includes(error.status)) return;
    }
    await pause(AGAIN_MS, signal);
  }
}

async function follow(subscriber, signal) {
  try {
    for await (const event of stream(address(subscriber), undefined, signal, () => setState("live"))) {
      deliver(subscriber, event.event, event.data, event.id);
    }
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 503) throw error;
    await poll(subscriber, signal);
  }
}

/** Ask every few seconds while all streams of the server are taken. */
async function poll(subscriber, signal) {
  // A stream may have become free after ten rounds.
  for (let round = 0; round < 10 && !signal.aborted; round += 1) {
    const { events } = await api("GET", `${address(subscriber)}&wait=0`, undefined, signal);
    setState("live");
    for (const event of events) deliver(subscriber, event.event, event.data, event.n);
    await pause(AGAIN_MS, signal);
  }
}

function deliver(subscriber, type, data, number) {
  if (number !== "" && number != null) subscriber.after = Number(number);
  if (type === "hello" && data?.reset) subscriber.handle({ type: "reset", data });
  else subscriber.handle({ type, data });
}

function address({ after, run }) {
  const query = new URLSearchParams();
  if (after != null) query.set("after", String(after));
  if (run) query.set("run", run);
  return `events?${query}`;
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
