/** The list of discussions, as `memory list` prints it. */
import { url, useApi } from "../../api.js";
import { html, useState } from "../../html.js";
import { Empty, Field, Loaded, Table, Title } from "../../parts/elements.js";
import { Moment, bytes, count, counted } from "../../parts/format.js";

// More rows are found by their names; thousands of them would be slow to draw.
const MOST_ROWS = 200;

/** @param {object} row @returns {string} the address of a discussion's page */
const hashOf = (row) => url`#/memory/${row.discussionId}?folder=${row.keyFolder ?? "none"}&user=${row.user}`;

const COLUMNS = {
  Discussion: (row) => html`<a href=${hashOf(row)}>${row.discussionId}</a> <span class="note">${
    [row.encrypted && "encrypted", row.damaged && "damaged"].filter(Boolean).join(", ")}</span>`,
  "Key folder": ({ keyFolder }) => (keyFolder ? html`<span class="mono" title=${keyFolder}>${keyFolder.slice(0, 8)}</span>` : "-"),
  Memories: (row) => count(row.memories, row.encrypted ? "encrypted" : "damaged"),
  Summary: (row) => (row.summary ? "yes" : "-"),
  Searchable: (row) => count(row.searchableMemories, "damaged"),
  Messages: (row) => count(row.messages, "damaged"),
  "State document": (row) => (row.stateDocument ? "yes" : "-"),
  "Last change": (row) => html`<${Moment} us=${row.lastChange && Date.parse(row.lastChange) * 1000} />`,
  Size: (row) => bytes(row.bytes),
  Vectors: (row) => Object.entries(row.vectors).map(([model, n]) => `${model} ${count(n.with)}/${count(n.with + n.without)}`).join(", ") || "-",
};

export default function Discussions({ session }) {
  const discussions = useApi("discussions");
  const [words, setWords] = useState("");
  const [most, setMost] = useState(MOST_ROWS);
  const all = discussions.data?.discussions ?? [];
  const found = all.filter((row) => row.discussionId.toLowerCase().includes(words.trim().toLowerCase()));
  const columns = new Set(all.map((row) => row.user)).size > 1 ? { User: (row) => row.user, ...COLUMNS } : COLUMNS;
  const size = bytes(found.reduce((sum, row) => sum + row.bytes, 0));
  return html`
    <div class="head"><${Title}>Memory<//>
      ${all.length > 0 && html`<span class="push"><${Field} label="Find a discussion" value=${words} onChange=${setWords} /></span>`}
    </div>
    <${Loaded} from=${discussions}>${() => (all.length ? html`
      <${Table} label="Discussions" rows=${found.slice(0, most)} columns=${columns} numbers=${["Memories", "Searchable", "Messages", "Size"]} keyOf=${hashOf} />
      <p class="list-end"><span class="note">${found.length < all.length && `${count(found.length)} of `}${counted(all.length, "discussion")}, ${size}</span>
        ${found.length > most && html`<button onClick=${() => setMost(most + MOST_ROWS)}>More discussions</button>`}</p>`
      : html`<${Empty} title="No discussions yet">
        <p>A discussion is a conversation that has a discussion id. What its workflows remember is listed here: summaries,
        memories, searchable memories and state documents.</p>
        <p>A message that contains <code>[DiscussionId]my-story[/DiscussionId]</code> gives its conversation the id <code>my-story</code>.
        ${session.role !== "operator" && " You see those of your own key."}</p><//>`)}<//>`;
}
