/** A run with its spans, which follows a running run by itself. */
import { useApi } from "../api.js";
import { useCallback, useMemo, useRef, useState } from "../html.js";
import { useEvents } from "../live.js";

/** @param {string} status of a run @returns {boolean} */
export function isUnfinished(status) {
  return status === "queued" || status === "running" || status === "answered";
}

/**
 * @param {string | null} id null: none yet
 * @returns {{run: object | null, spans: import("./spans.js").SpanRow[], explanation: object | null, prefix: object,
 *            live: Map<number, {tokens: number, text?: string, reasoning?: string}>, leftOut: object | null,
 *            error: Error | null, loading: boolean, gone: boolean, reload: () => void}}
 */
export function useRun(id) {
  const { data, error, loading, reload } = useApi(id === null ? null : `runs/${encodeURIComponent(id)}`);
  const [news, setNews] = useState(NO_NEWS);
  const base = useRef(null);
  if (base.current !== data) {
    // What was read anew has all that the events told before.
    base.current = data;
    if (news !== NO_NEWS) setNews(NO_NEWS);
  }
  const run = data && { ...data.run, ...news.run };
  const follow = data && isUnfinished(data.run.status);
  useEvents(({ type, data: told }) => {
    if (type === "reset") reload();
    else if (type === "gone" && told.run === id) setNews((old) => ({ ...old, gone: true }));
    else if (type === "run" && told.run.id === id) {
      setNews((old) => ({ ...old, run: told.run }));
      // The explanation is written when the run has ended.
      if (!isUnfinished(told.run.status)) reload();
    } else if (type === "span" && told.run === id) setNews((old) => withSpan(old, told.span));
    else if (type === "live" && told.run === id && told.span != null) {
      setNews((old) => ({ ...old, live: new Map(old.live).set(told.span, told) }));
    }
  }, { run: id ?? undefined, after: follow ? data.event ?? undefined : null });
  const spans = useMemo(() => merged(data?.spans ?? [], news.spans), [data, news.spans]);
  return {
    run, spans, live: news.live, gone: news.gone, error, loading, leftOut: data?.left_out ?? null,
    explanation: data?.explanation ?? null, prefix: data?.prefix ?? {}, reload: useCallback(reload, [reload]),
  };
}

const NO_NEWS = { run: {}, spans: new Map(), live: new Map(), gone: false };

function withSpan(old, row) {
  const live = new Map(old.live);
  // What a call has written so far is replaced by its texts when it ends.
  if (row[6] !== "running") live.delete(row[0]);
  return { ...old, live, spans: new Map(old.spans).set(row[0], row) };
}

function merged(rows, changed) {
  if (!changed.size) return rows;
  const known = new Set(rows.map(([id]) => id));
  return [...rows.map((row) => changed.get(row[0]) ?? row), ...[...changed.values()].filter(([id]) => !known.has(id))];
}
