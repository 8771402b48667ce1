/** A run with its spans, which follows a running run by itself. */
import { url, useApi } from "../api.js";
import { useMemo, useRef, useState } from "../html.js";
import { useEvents } from "../live.js";
import { isUnfinished } from "./elements.js";

/** What the events told since the run was read. */
const NO_NEWS = { run: {}, spans: new Map(), live: new Map(), gone: false };

/**
 * @param {string} id
 * @returns {{run: object | null, spans: import("./spans.js").SpanRow[], explanation: object | null, prefix: object,
 *            live: Map<number, {tokens: number, text?: string, reasoning?: string}>, leftOut: object | null,
 *            error: Error | null, loading: boolean, gone: boolean, reload: () => void}}
 */
export function useRun(id) {
  const { data, error, loading, reload } = useApi(url`runs/${id}`);
  const [news, setNews] = useState(NO_NEWS);
  const base = useRef(null);
  if (base.current !== data) {
    // What was read again has all that the events told before.
    base.current = data;
    if (news !== NO_NEWS) setNews(NO_NEWS);
  }
  const add = (change) => setNews((old) => ({ ...old, ...change(old) }));
  const follow = data && isUnfinished(data.run.status);
  useEvents(({ type, data: told }) => {
    if (type === "reset") reload();
    else if (type === "run" && told.run.id === id) {
      add(() => ({ run: told.run }));
      // The explanation is written when the run has ended.
      if (!isUnfinished(told.run.status)) reload();
    } else if (told?.run !== id) return;
    else if (type === "gone") add(() => ({ gone: true }));
    else if (type === "span") add((old) => withSpan(old, told.span));
    else if (type === "live" && told.span != null) add((old) => ({ live: new Map(old.live).set(told.span, told) }));
  }, { run: id, after: follow ? data.event ?? undefined : null });
  const spans = useMemo(() => merged(data?.spans ?? [], news.spans), [data, news.spans]);
  return {
    ...news, run: data && { ...data.run, ...news.run }, spans, error, loading, reload, leftOut: data?.left_out ?? null,
    explanation: data?.explanation ?? null, prefix: data?.prefix ?? {},
  };
}

function withSpan(old, row) {
  const live = new Map(old.live);
  // What a call has written so far is replaced by its texts when it ends.
  if (row[6] !== "running") live.delete(row[0]);
  return { live, spans: new Map(old.spans).set(row[0], row) };
}

function merged(rows, changed) {
  return changed.size ? [...new Map([...rows.map((row) => [row[0], row]), ...changed]).values()] : rows;
}
