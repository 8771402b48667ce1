/** One discussion: its summary, its memories, and what can be done with them. */
import { api, url, useAction, useApi } from "../../api.js";
import { html, useEffect, useRef, useState } from "../../html.js";
import { Field, Loaded, Problem, Tabs, Title, Toolbar } from "../../parts/elements.js";
import { Folded, download } from "../../parts/folded.js";
import { bytes, count, json } from "../../parts/format.js";
import { navigate } from "../../routes.js";
import { Memory } from "./article.js";
import { DeleteDiscussion, WriteAnew } from "./dialogs.js";

const PAGE_SIZE = 100;
const TYPING_MS = 300;
// `list`: where there are many texts, so that something can be searched for.
const TABS = [
  { name: "Summary", part: "summary", none: "There is no summary. A chatSummary node writes one from the memories." },
  { name: "Memories", part: "memories", list: true, none: "There are no memories in a file. A QualityMemory node writes them.", found: "with these words" },
  { name: "Searchable", part: "searchable", list: true, found: "as a VectorMemorySearch node finds them, best first",
    none: "There are no searchable memories. A QualityMemory node writes them where the memory settings switch on vector memories." },
  { name: "State document", part: "state", none: "There is no state document. The memory settings say whether one is kept." },
  { name: "Messages", part: "messages", list: true, size: 50, found: "as a Recall node finds them, best first",
    none: "No messages are stored. They are kept with rememberMessages in the memory settings." },
];

export default function Discussion({ path: [id], query }) {
  const chosen = TABS.find((tab) => tab.part === query.get("part")) ?? TABS[0];
  const [words, setWords] = useState("");
  const searched = useLater(words.trim());
  const [dialog, setDialog] = useState("");
  const [said, setSaid] = useState("");
  const where = new URLSearchParams(["folder", "user"].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  const base = url`discussions/${id}`;
  const search = chosen.list ? searched : "";
  const entries = useEntries(base, where, chosen, search);
  // Stays while another part is loaded.
  const last = useRef(null);
  const discussion = last.current = entries.data?.discussion ?? last.current;
  const choose = (name) => {
    const { part } = TABS.find((one) => one.name === name);
    navigate(`#/${url`memory/${id}`}?${new URLSearchParams([...where, ["part", part]])}`, { replace: true });
  };
  const onWords = (value) => {
    setWords(value);
    if (value.trim() && !chosen.list) choose("Searchable");
  };
  const saving = useAction(async () => download(`${id}.json`, json(await api("GET", `${base}/export?${where}`))));
  const close = () => setDialog("");
  return html`
    <p class="crumbs"><a href="#/memory">Memory</a></p>
    <div class="head">
      <${Title}>${id}<//>
      ${discussion && html`<span class="note">${[discussion.user, bytes(discussion.bytes),
          discussion.keyFolder && `key ${discussion.keyFolder.slice(0, 8)}`, discussion.encrypted && "encrypted"].filter(Boolean).join(" · ")}</span>
        <span class="push"></span>
        <${Toolbar} label="Discussion actions">
          <button disabled=${discussion.encrypted} onClick=${saving.run}>Download</button>
          <button disabled=${discussion.encrypted} onClick=${() => setDialog("anew")}>Write all memories anew</button>
          <button class="danger" onClick=${() => setDialog("delete")}>Delete discussion</button><//>`}
    </div>
    <${Problem} ...${saving} />
    <p role="status" class="said">${said}</p>
    ${discussion && html`<div role="search" class="search"><${Field} label="Search memories" value=${words} onChange=${onWords} /></div>`}
    <${Tabs} label="Memories of this discussion" chosen=${chosen.name} onChoose=${choose}
      tabs=${TABS.map(({ name, part }) => ({ name, count: { memories: discussion?.memories, searchable: discussion?.searchableMemories, messages: discussion?.messages }[part] }))}>
      <${Loaded} from=${entries}>${(data) => html`
        ${data.problem && html`<p class="note">${data.locked
          ? "This is encrypted with the key of its client. Sign in with that key to read it." : data.problem}</p>`}
        ${data.unwritten && html`<p class="note ${data.conspicuous ? "warning" : ""}">${data.unwritten}</p>`}
        ${search && !entries.loading && html`<p class="note" role="status">${
          data.entries.length ? `${count(data.entries.length)} found` : "None found"}, ${chosen.found}</p>`}
        ${!data.problem && !data.entries.length && !search && html`<p class="note">${chosen.none}</p>`}
        ${data.entries.map((entry) => html`<${Memory} key=${entry.number} entry=${entry} part=${chosen.part} base=${base} where=${where}
          replace=${entries.replace} reload=${entries.reload} />`)}
        ${data.next != null && html`<p class="list-end"><span class="note">${count(data.entries.length)} of ${count(data.total)}</span>
          <button disabled=${entries.older.busy} onClick=${entries.older.run}>Older ${chosen.size ? "messages" : "memories"}</button></p>
          <${Problem} ...${entries.older} />`}
        ${data.elsewhere?.length > 0 && !search && html`<${Elsewhere} memories=${data.elsewhere} />`}`}<//>
    <//>
    ${dialog === "anew" && html`<${WriteAnew} base=${base} where=${where} onClose=${close}
      onDone=${(file) => { setSaid(`The memories are written anew with the next message. What there was is in ${file} of the console's folder.`); entries.reload(); }} />`}
    ${dialog === "delete" && html`<${DeleteDiscussion} id=${id} base=${base} where=${where} onClose=${close} />`}`;
}

/** Memories that do not fit the conversation now. */
function Elsewhere({ memories }) {
  return html`<details class="memory"><summary>Elsewhere <span class="count">${count(memories.length)}</span></summary>
    <p class="note">They come back by themselves when their messages do.</p>
    ${memories.map(({ text, missing }) => html`<${Folded} text=${text} />
      <p class="note">Made from ${missing ? "a message that is" : "messages that are"} not in the conversation now${missing ? `: ${missing}` : "."}</p>`)}
  </details>`;
}

/** The texts of a part, older ones on demand. */
function useEntries(base, where, { part, size = PAGE_SIZE }, words) {
  const path = `${base}?${new URLSearchParams([...where, ["part", part], ["limit", size], ...words ? [["q", words]] : []])}`;
  const answer = useApi(path);
  const older = useAction(async () => {
    const { entries, next } = await api("GET", `${path}&before=${answer.data.next}`);
    answer.change((data) => ({ ...data, entries: [...data.entries, ...entries], next }));
  });
  const replace = (number, changed) => answer.change((data) => ({
    ...data, entries: data.entries.map((entry) => (entry.number === number ? { ...entry, ...changed } : entry)) }));
  return { ...answer, older, replace };
}

/** The value, once it has not changed for a moment. */
function useLater(value) {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return late;
}
