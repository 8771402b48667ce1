/** The live stream: one for each visible tab, closed while the tab is hidden. */
import { AGAIN_MS, api, stream } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

/** @typedef {{type: "hello" | "run" | "span" | "live" | "gone" | "reset", data: any}} LiveEvent */

// So often is asked while all streams of the server are taken, before a stream is tried again.
const ROUNDS = 10;

const subscribers = new Set();
const watchers = new Set();
let state = "paused";
let current = new AbortController();

function setState(next) {
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
 * @param {{after?: number | null, run?: string}} what `after`: the number of the last event that is known already,
 *     null as long as it is not known; `run`: events of this run alone, with its spans and texts
 */
export function useEvents(handler, { after, run }) {
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
  current.abort();
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
      if ([400, 401, 403, 404].includes(error.status)) return;
    }
    await pause(signal);
  }
}

async function follow(subscriber, signal) {
  try {
    for await (const { event, data, id } of stream(address(subscriber), undefined, signal, () => setState("live"))) deliver(subscriber, event, data, id);
  } catch (error) {
    if (error.status !== 503) throw error;
    await poll(subscriber, signal);
  }
}

async function poll(subscriber, signal) {
  for (let round = 0; round < ROUNDS && !signal.aborted; round += 1) {
    const { events } = await api("GET", `${address(subscriber)}&wait=0`, undefined, signal);
    setState("live");
    for (const { event, data, n } of events) deliver(subscriber, event, data, n);
    await pause(signal);
  }
}

function deliver(subscriber, type, data, number) {
  if (number !== "" && number != null) subscriber.after = Number(number);
  subscriber.handle({ type: type === "hello" && data?.reset ? "reset" : type, data });
}

function address({ after, run }) {
  return `events?${new URLSearchParams({ ...after != null && { after }, ...run && { run } })}`;
}

function pause(signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, AGAIN_MS);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
