/** One discussion: its summary, its memories, and what can be done with them. */
import { api, useApi } from "../../api.js";
import { html, useEffect, useRef, useState } from "../../html.js";
import { Loading, Problem } from "../../parts/alert.js";
import { Field } from "../../parts/fields.js";
import { download } from "../../parts/folded.js";
import { bytes, count } from "../../parts/format.js";
import { Tabs } from "../../parts/tabs.js";
import { Title } from "../../parts/title.js";
import { navigate } from "../../routes.js";
import { Memory } from "./article.js";
import { DeleteDiscussion, WriteAnew } from "./dialogs.js";

const PAGE = 100;
const TABS = [
  { name: "Summary", part: "summary", none: "There is no summary. A chatSummary node writes one from the memories." },
  { name: "Memories", part: "memories", none: "There are no memories in a file. A QualityMemory node writes them." },
  { name: "Searchable", part: "searchable", none: "There are no searchable memories. A QualityMemory node writes them where the memory settings switch on vector memories." },
  { name: "State document", part: "state", none: "There is no state document. The memory settings say whether one is kept." },
];

/** @param {{id: string, query: URLSearchParams, session: import("../../session.js").Session}} props */
export function DiscussionPage({ id, query }) {
  const chosen = TABS.find((tab) => tab.part === query.get("part")) ?? TABS[0];
  const [words, setWords] = useState("");
  const searched = useLater(words.trim(), 300);
  const [problem, setProblem] = useState(null);
  const [dialog, setDialog] = useState("");
  const [said, setSaid] = useState("");
  const where = new URLSearchParams(["folder", "user"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  const base = `discussions/${encodeURIComponent(id)}`;
  const search = searched && ["memories", "searchable"].includes(chosen.part) ? searched : "";
  const { entries, data, error, loading, reload, more, replace } = useEntries(base, where, chosen.part, search);
  // Stays while another part is loaded.
  const last = useRef(null);
  if (data) last.current = data.discussion;
  const discussion = last.current;
  const choose = (name) => {
    const tab = TABS.find((one) => one.name === name);
    navigate(`#/memory/${encodeURIComponent(id)}?${new URLSearchParams([...where, ["part", tab.part]])}`, { replace: true });
  };
  // What is searched for can only be found where there are many texts.
  const onWords = (value) => {
    setWords(value);
    if (value.trim() && !["memories", "searchable"].includes(chosen.part)) choose("Searchable");
  };
  const save = async () => {
    setProblem(null);
    try {
      download(`${id}.json`, JSON.stringify(await api("GET", `${base}/export?${where}`), null, 2));
    } catch (failure) {
      setProblem(failure);
    }
  };
  return html`
    <p class="crumbs"><a href="#/memory">Memory</a></p>
    <div class="head">
      <${Title}>${id}<//>
      ${discussion && html`<span class="quiet-text">${[discussion.user, bytes(discussion.bytes),
        discussion.keyFolder && `key ${discussion.keyFolder.slice(0, 8)}`, discussion.encrypted && "encrypted"].filter(Boolean).join(" · ")}</span>`}
      <span class="push"></span>
      ${discussion && html`<div role="toolbar" aria-label="Discussion actions" class="actions">
        <button type="button" disabled=${discussion.encrypted} onClick=${save}>Download</button>
        <button type="button" disabled=${discussion.encrypted} onClick=${() => setDialog("anew")}>Write all memories anew</button>
        <button type="button" class="danger" onClick=${() => setDialog("delete")}>Delete discussion</button></div>`}
    </div>
    <${Problem} error=${problem} onClose=${() => setProblem(null)} />
    <${Problem} error=${error} retry=${reload} />
    <p role="status" class="said">${said}</p>
    ${discussion && html`<div role="search" class="search"><${Field} label="Search memories" value=${words} onChange=${onWords} /></div>`}
    <${Tabs} label="Memories of this discussion" chosen=${chosen.name} onChoose=${choose}
      tabs=${TABS.map((tab) => ({ name: tab.name, count: tabCount(tab.part, discussion) }))}>
      ${loading && !data && html`<${Loading} />`}
      ${data?.problem && html`<p class="quiet-text">${data.locked
        ? "This is encrypted with the key of its client. Sign in with that key to read it." : data.problem}</p>`}
      ${search && data && !loading && html`<p class="quiet-text" role="status">${found(entries.length, chosen.part)}</p>`}
      ${data && !data.problem && !entries.length && !search && html`<p class="quiet-text">${chosen.none}</p>`}
      ${entries.map((entry) => html`<${Memory} key=${entry.number} entry=${entry} part=${chosen.part} base=${base} where=${where}
        replace=${replace} reload=${reload} />`)}
      ${data?.next != null && html`<p class="list-end"><span class="quiet-text">${count(entries.length)} of ${count(data.total)}</span>
        <button type="button" onClick=${more}>Older memories</button></p>`}
    <//>
    ${dialog === "anew" && html`<${WriteAnew} base=${base} where=${where} onClose=${() => setDialog("")}
      onDone=${(file) => { setSaid(`The memories are written anew with the next message. What there was is in ${file} of the console's folder.`); reload(); }} />`}
    ${dialog === "delete" && html`<${DeleteDiscussion} id=${id} base=${base} where=${where} onClose=${() => setDialog("")} />`}`;
}

/** The texts of a part, with older ones loaded on demand. */
function useEntries(base, where, part, words) {
  const query = new URLSearchParams([...where, ["part", part], ["limit", PAGE]]);
  if (words) query.set("q", words);
  const path = `${base}?${query}`;
  const answer = useApi(path);
  const [older, setOlder] = useState({ path: "", entries: [], next: null });
  const own = older.path === path ? older : null;
  const more = async () => {
    const last = own ?? { entries: [], next: answer.data.next };
    const rest = await api("GET", `${path}&before=${last.next}`);
    setOlder({ path, entries: [...last.entries, ...rest.entries], next: rest.next });
  };
  const entries = [...(answer.data?.entries ?? []), ...(own?.entries ?? [])];
  const swap = (list, number, changed) => list.map((entry) => (entry.number === number ? { ...entry, ...changed } : entry));
  const replace = (number, changed) => {
    answer.change((data) => ({ ...data, entries: swap(data.entries, number, changed) }));
    if (own) setOlder({ ...own, entries: swap(own.entries, number, changed) });
  };
  const reload = () => { setOlder({ path: "", entries: [], next: null }); answer.reload(); };
  const data = answer.data && own ? { ...answer.data, next: own.next } : answer.data;
  return { ...answer, data, entries, more, replace, reload };
}

function useLater(value, milliseconds) {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value]);
  return late;
}

function tabCount(part, discussion) {
  if (!discussion) return undefined;
  return { memories: discussion.memories, searchable: discussion.searchableMemories }[part] ?? undefined;
}

function found(n, part) {
  const what = part === "searchable" ? "as a VectorMemorySearch node finds them, best first" : "with these words";
  return n ? `${count(n)} found, ${what}` : `None found, ${what}`;
}
