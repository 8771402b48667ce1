/** The runs that are listed: the newest by one call, older ones on demand, new ones by the live stream. */
import { api, useApi } from "../../api.js";
import { useEffect, useRef, useState } from "../../html.js";
import { useEvents } from "../../live.js";
import { isUnfinished } from "../../parts/run_data.js";
import { listPath, matches } from "./query.js";

// A search in all texts ends after so many hits or milliseconds; Older runs goes on with it.
const SEARCH_HITS = 200;
const SEARCH_MS = 10_000;

/** Kept while the console is open, so that going back from a run shows the list as it was left. */
let kept = { path: "", runs: [], next: null, total: 0, choices: null, scroll: 0 };

/**
 * @param {URLSearchParams} query of the address
 * @param {() => boolean} mayMove whether new runs may come in at the top without moving what is being read
 */
export function useRunList(query, mayMove) {
  const path = listPath(query);
  const [list, setList] = useState(() => (kept.path === path ? kept : { ...kept, path: "", runs: [] }));
  const [held, setHeld] = useState([]);
  const [searched, setSearched] = useState(/** @type {number | null} */ (null));
  const [older, setOlder] = useState({ loading: false, error: null });
  const { data, error, loading, reload } = useApi(path);
  const latest = useRef(list);
  latest.current = list;
  const live = useRef(new Map());

  useEffect(() => {
    if (!data) return;
    const first = new Set(data.runs.map((run) => run.id));
    // Older runs that were loaded before stay, as long as the list is the same.
    const rest = list.path === path ? list.runs.filter((run) => !first.has(run.id) && run.started < (data.runs.at(-1)?.started ?? 0)) : [];
    setList({ path, runs: [...data.runs, ...rest], next: rest.length ? list.next : data.next, total: data.total,
      choices: data.choices ?? list.choices, scroll: 0 });
    setHeld([]);
  }, [data]);
  useEffect(() => {
    if (kept.path === path && kept.scroll) window.scrollTo(0, kept.scroll);
    return () => { kept = { ...latest.current, scroll: window.scrollY }; };
  }, []);

  const change = (id, how) => setList((old) => ({ ...old, runs: old.runs.map((run) => (run.id === id ? how(run) : run)) }));
  const append = (page) => setList((old) => {
    if (old.path !== path) return old;
    const known = new Set(old.runs.map((run) => run.id));
    return { ...old, runs: [...old.runs, ...page.runs.filter((run) => !known.has(run.id))], next: page.next, total: page.total };
  });
  useEffect(() => {
    if (data?.searched == null || !data.next) return undefined;
    // The server searches for a second at a time, so that the list grows while one looks at it.
    const abort = new AbortController();
    const until = performance.now() + SEARCH_MS;
    const goOn = async () => {
      let page = data;
      for (let hits = page.runs.length; page.next && hits < SEARCH_HITS && performance.now() < until; hits += page.runs.length) {
        setSearched(page.searched);
        page = await api("GET", listPath(query, page.next), undefined, abort.signal);
        if (abort.signal.aborted) return;
        append(page);
      }
    };
    goOn().catch((problem) => !abort.signal.aborted && setOlder({ loading: false, error: problem }))
      .finally(() => !abort.signal.aborted && setSearched(null));
    return () => { abort.abort(); setSearched(null); };
  }, [data]);
  const insert = (runs) => setList((old) => {
    const fresh = runs.filter((run) => !old.runs.some((one) => one.id === run.id));
    return { ...old, runs: [...fresh, ...old.runs], total: old.total + fresh.length };
  });
  useEvents(({ type, data: told }) => {
    if (type === "reset") reload();
    else if (type === "live") {
      live.current.set(told.run, told.tokens);
      change(told.run, (run) => ({ ...run }));
    } else if (type === "gone") {
      setList((old) => ({ ...old, runs: old.runs.filter((run) => run.id !== told.run) }));
    } else if (type === "run") {
      const { run } = told;
      if (!isUnfinished(run.status)) live.current.delete(run.id);
      if (latest.current.runs.some((one) => one.id === run.id)) change(run.id, () => run);
      // Texts that are not in the list can be searched by the server alone.
      else if (!(query.get("all") && query.get("q")) && matches(run, query)) {
        if (mayMove()) insert([run]);
        else setHeld((old) => [run, ...old.filter((one) => one.id !== run.id)]);
      }
    }
  }, { after: data ? data.event ?? undefined : null });

  const loadOlder = async () => {
    setOlder({ loading: true, error: null });
    try {
      const page = await api("GET", listPath(query, list.next));
      append(page);
      setOlder({ loading: false, error: null });
    } catch (problem) {
      setOlder({ loading: false, error: problem });
    }
  };
  const showHeld = () => {
    insert(held);
    setHeld([]);
    window.scrollTo(0, 0);
  };
  return { ...list, current: list.path === path, error, loading, reload, held, showHeld, older, loadOlder, searched, live: live.current };
}
