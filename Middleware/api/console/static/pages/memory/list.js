/** The list of discussions, as `memory list` prints it. */
import { useApi } from "../../api.js";
import { html, useState } from "../../html.js";
import { Empty, Loading, Problem } from "../../parts/alert.js";
import { Field } from "../../parts/fields.js";
import { Moment, bytes, count, counted } from "../../parts/format.js";
import { Title } from "../../parts/title.js";

const COLUMNS = ["Discussion", "Key folder", "Memories", "Summary", "Searchable", "State document", "Last change", "Size", "Vectors"];
const NUMBERS = ["Memories", "Searchable", "Size"];
// More rows are found by their names; thousands of them would be slow to draw.
const MOST_ROWS = 200;

/** @param {{session: import("../../session.js").Session}} props */
export function DiscussionList({ session }) {
  const { data, error, loading, reload } = useApi("discussions");
  const [words, setWords] = useState("");
  const [most, setMost] = useState(MOST_ROWS);
  const all = data?.discussions ?? [];
  const found = all.filter((row) => row.discussionId.toLowerCase().includes(words.trim().toLowerCase()));
  const users = new Set(all.map((row) => row.user)).size > 1;
  return html`
    <div class="head"><${Title}>Memory<//>
      ${all.length > 0 && html`<span class="push"><${Field} label="Find a discussion" value=${words} onChange=${setWords} /></span>`}
    </div>
    <${Problem} error=${error} retry=${reload} />
    ${loading && !data && html`<${Loading} />`}
    ${data && !all.length && html`<${Empty} title="No discussions yet">
      <p>A discussion is a conversation that has a discussion id. What its workflows remember is listed here: summaries,
      memories, searchable memories and state documents.</p>
      <p>A message that contains <code>[DiscussionId]my-story[/DiscussionId]</code> gives its conversation the id <code>my-story</code>.
      ${session.role !== "operator" && " You see those of your own key."}</p><//>`}
    ${all.length > 0 && html`<table class="cards discussions" role="table" aria-label="Discussions">
      <thead role="rowgroup"><tr role="row">
        ${(users ? ["User", ...COLUMNS] : COLUMNS).map((name) => html`<th role="columnheader" scope="col" key=${name}
          class=${NUMBERS.includes(name) ? "num" : ""}>${name}</th>`)}
      </tr></thead>
      <tbody role="rowgroup">${found.slice(0, most).map((row) => html`<${Row} key=${hashOf(row)} row=${row} users=${users} />`)}</tbody>
    </table>
    <p class="list-end"><span class="quiet-text">${summary(found, all.length)}</span>
      ${found.length > most && html`<button type="button" onClick=${() => setMost(most + MOST_ROWS)}>More discussions</button>`}</p>`}`;
}

/** @param {object} row @returns {string} the address of a discussion's page */
function hashOf(row) {
  const query = new URLSearchParams({ folder: row.keyFolder ?? "none", user: row.user });
  return `#/memory/${encodeURIComponent(row.discussionId)}?${query}`;
}

function Row({ row, users }) {
  const cell = (column, content, title) => html`<td role="cell" data-label=${column} title=${title}
    class=${NUMBERS.includes(column) ? "num" : ""}>${content}</td>`;
  const unknown = row.encrypted ? "encrypted" : "damaged";
  const notes = [row.encrypted && "encrypted", row.damaged && "damaged"].filter(Boolean);
  return html`<tr role="row">
    ${users && cell("User", row.user)}
    ${cell("Discussion", html`<a href=${hashOf(row)}>${row.discussionId}</a>${notes.length
      ? html` <span class="quiet-text">${notes.join(", ")}</span>` : ""}`)}
    ${cell("Key folder", row.keyFolder ? html`<span class="mono">${row.keyFolder.slice(0, 8)}</span>` : "-", row.keyFolder)}
    ${cell("Memories", row.memories == null ? unknown : count(row.memories))}
    ${cell("Summary", row.summary ? "yes" : "-")}
    ${cell("Searchable", row.searchableMemories == null ? "damaged" : count(row.searchableMemories))}
    ${cell("State document", row.stateDocument ? "yes" : "-")}
    ${cell("Last change", html`<${Moment} us=${row.lastChange ? Date.parse(row.lastChange) * 1000 : null} />`)}
    ${cell("Size", bytes(row.bytes))}
    ${cell("Vectors", Object.entries(row.vectors).map(([model, n]) => `${model} ${count(n.with)}/${count(n.with + n.without)}`).join(", ") || "-")}
  </tr>`;
}

function summary(found, all) {
  const size = bytes(found.reduce((sum, row) => sum + row.bytes, 0));
  return found.length === all ? `${counted(all, "discussion")}, ${size}` : `${count(found.length)} of ${counted(all, "discussion")}, ${size}`;
}
