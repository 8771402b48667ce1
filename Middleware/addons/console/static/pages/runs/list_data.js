/** The runs that are listed: the newest by one call, older ones on demand, new ones by the live stream. */
import { api, useAction, useApi } from "../../api.js";
import { useEffect, useRef, useState } from "../../html.js";
import { useEvents } from "../../live.js";
import { isUnfinished } from "../../parts/elements.js";
import { listPath, matches } from "./query.js";

// A search in all texts ends after so many hits or milliseconds; Older runs goes on with it.
const SEARCH_HITS = 200;
const SEARCH_MS = 10_000;

const NOTHING = { path: "", runs: [], next: null, total: 0, choices: null };

/** Kept while the console is open, so that going back from a run shows the list as it was left. */
let kept = { ...NOTHING, scroll: 0 };

/** Those of `more` that are not in `runs`. */
const others = (runs, more) => {
  const known = new Set(runs.map((run) => run.id));
  return more.filter((run) => !known.has(run.id));
};

/**
 * @param {URLSearchParams} query of the address
 * @param {() => boolean} mayMove whether new runs may come in at the top without moving what is being read
 */
export function useRunList(query, mayMove) {
  const path = listPath(query);
  const [list, setList] = useState(() => (kept.path === path ? kept : { ...NOTHING, choices: kept.choices }));
  const [held, setHeld] = useState([]);
  const [searched, setSearched] = useState(null);
  const { data, error, loading, reload } = useApi(path);
  const latest = useRef(list);
  latest.current = list;
  const live = useRef(new Map()).current;

  useEffect(() => {
    if (!data) return;
    // Older runs that were loaded before stay, as long as the list is the same.
    const rest = list.path === path ? others(data.runs, list.runs).filter((run) => run.started < (data.runs.at(-1)?.started ?? 0)) : [];
    setList({ path, runs: [...data.runs, ...rest], next: rest.length ? list.next : data.next, total: data.total, choices: data.choices ?? list.choices });
    setHeld([]);
  }, [data]);
  useEffect(() => {
    if (kept.path === path && kept.scroll) window.scrollTo(0, kept.scroll);
    return () => { kept = { ...latest.current, scroll: window.scrollY }; };
  }, []);

  const change = (how) => setList((old) => ({ ...old, runs: how(old.runs) }));
  const append = ({ runs, next, total }) => setList((old) => (old.path === path ? { ...old, runs: [...old.runs, ...others(old.runs, runs)], next, total } : old));
  const insert = (runs) => setList((old) => {
    const fresh = others(old.runs, runs);
    return { ...old, runs: [...fresh, ...old.runs], total: old.total + fresh.length };
  });
  const older = useAction(async () => append(await api("GET", listPath(query, list.next))));
  useEffect(() => {
    if (data?.searched == null || !data.next) return undefined;
    let left = false;
    // The server searches for a second at a time, so that the list grows while one looks at it.
    const goOn = async () => {
      const until = performance.now() + SEARCH_MS;
      let page = data;
      for (let hits = page.runs.length; page.next && hits < SEARCH_HITS && performance.now() < until; hits += page.runs.length) {
        setSearched(page.searched);
        page = await api("GET", listPath(query, page.next));
        if (left) return;
        append(page);
      }
    };
    const end = () => left || setSearched(null);
    // Where it stopped, Older runs asks again, and says what is wrong.
    goOn().then(end, end);
    return () => { end(); left = true; };
  }, [data]);
  useEvents(({ type, data: told }) => {
    if (type === "reset") reload();
    else if (type === "live") {
      live.set(told.run, told.tokens);
      change((runs) => runs.map((run) => (run.id === told.run ? { ...run } : run)));
    } else if (type === "gone") change((runs) => runs.filter((run) => run.id !== told.run));
    else if (type === "run") {
      const { run } = told;
      if (!isUnfinished(run.status)) live.delete(run.id);
      if (latest.current.runs.some((one) => one.id === run.id)) change((runs) => runs.map((one) => (one.id === run.id ? run : one)));
      // Texts that are not in the list can be searched by the server alone.
      else if (!(query.get("all") && query.get("q")) && matches(run, query)) {
        if (mayMove()) insert([run]);
        else setHeld((old) => [run, ...others([run], old)]);
      }
    }
  }, { after: data ? data.event ?? undefined : null });
  const showHeld = () => {
    insert(held);
    setHeld([]);
    window.scrollTo(0, 0);
  };
  return { ...list, current: list.path === path, error, loading, reload, held, showHeld, older, searched, live };
}
