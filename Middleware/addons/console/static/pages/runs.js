/** All runs, newest first. */
import { api, url, useAction } from "../api.js";
import { html, useRef, useState } from "../html.js";
import { useNow } from "../parts/clock.js";
import { Empty, Loading, Problem, Title } from "../parts/elements.js";
import { count, counted, shortId } from "../parts/format.js";
import { useShortcuts } from "../parts/keyboard.js";
import { navigate } from "../routes.js";
import { Filters, Search } from "./runs/filters.js";
import { useRunList } from "./runs/list_data.js";
import { isFiltered, listHash } from "./runs/query.js";
import { RunTable } from "./runs/table.js";

// Scrolled further than this, new runs would move what is being read.
const SCROLLED = 40;

export default function Runs({ query }) {
  const list = useRunList(query, () => window.scrollY < SCROLLED);
  const [selected, setSelected] = useState([]);
  const [current, setCurrent] = useState(null);
  const field = useRef(null);
  const { runs, older, searched } = list;
  const change = (changes) => navigate(listHash(query, changes), { replace: true });
  const step = (by) => {
    const at = runs.findIndex((run) => run.id === current);
    const next = runs[at < 0 ? 0 : Math.min(runs.length - 1, Math.max(0, at + by))];
    if (next) setCurrent(next.id);
  };
  useShortcuts({ "/": () => { field.current?.focus(); field.current?.select(); }, j: () => step(1), k: () => step(-1) });
  const stopping = useAction((id) => api("POST", url`runs/${id}/stop`, {}));
  // The two that were ticked last are compared.
  const select = (id, on) => setSelected((old) => [...old.filter((one) => one !== id), ...(on ? [id] : [])]);
  const searching = list.loading && !list.current;
  return html`
    <div class="head">
      <${Title}>Runs<//>
      <${Search} query=${query} change=${change} field=${field} />
    </div>
    <${Filters} query=${query} change=${change} choices=${list.choices} runs=${runs} />
    <${Problem} error=${list.error} retry=${list.reload} />
    <${Problem} ...${stopping} />
    ${list.held.length > 0 && html`<p class="held"><button class="primary" onClick=${list.showHeld}>${counted(list.held.length, "new run")}</button></p>`}
    ${searching && (query.get("q") ? html`<${Searching} all=${query.get("all")} />` : html`<${Loading} />`)}
    ${searched !== null && html`<p class="loading" role="status">Searching all texts, newest first … ${count(searched)} of ${count(list.total)} runs</p>`}
    ${list.current && !runs.length && searched === null && html`<${Nothing} query=${query} />`}
    ${runs.length > 0 && html`<div class=${searching ? "stale" : ""}>
      <${RunTable} runs=${runs} total=${list.total} live=${list.live} selected=${selected} select=${select} stop=${stopping.run}
        current=${current} setCurrent=${setCurrent} />
      <div class="list-end">
        <span class="note">${count(runs.length)} of ${count(list.total)}</span>
        ${list.next && html`<button disabled=${older.busy} onClick=${older.run}>Older runs</button>`}
        <${Problem} error=${older.error} retry=${older.run} />
        <button class="push" disabled=${selected.length !== 2} onClick=${() => navigate(url`#/compare/${selected[0]}/${selected[1]}`)}>Compare selected</button>
        <span class="note">${selected.map(shortId).join(", ")}</span>
      </div>
    </div>`}`;
}

/** A search in all texts may take ten seconds: it shows that it is at work. */
function Searching({ all }) {
  const now = useNow(true);
  const [begin] = useState(now);
  const seconds = Math.floor((now - begin) / 1e6);
  return html`<p class="loading" role="status">Searching ${all && "all texts, newest first"} … ${seconds > 0 && counted(seconds, "second")}</p>`;
}

function Nothing({ query }) {
  if (isFiltered(query)) {
    return html`<${Empty} title="No run matches">
      <p>Every run that has these words and filters would be here.${query.get("q") && !query.get("all")
        && " Search all texts looks into prompts and answers, too."}</p>
      <p><button onClick=${() => navigate("#/runs", { replace: true })}>Show all runs</button></p><//>`;
  }
  const server = new URL("..", location.href.split("#")[0]).href.replace(/\/$/, "");
  return html`<${Empty} title="No runs yet">
    <p>Every request that reaches this server stands here from the moment it arrives, with its route, prompts and answers.
      Front-ends such as Open WebUI and SillyTavern connect to</p>
    <pre>${server}/v1</pre>
    <p>or try it in a terminal:</p>
    <pre>curl ${server}/v1/chat/completions -H "Content-Type: application/json" -d '${
      '{"messages": [{"role": "user", "content": "Hello"}]}'}'</pre>
    <p>or write to it in the <a href="#/playground">Playground</a>.</p><//>`;
}
