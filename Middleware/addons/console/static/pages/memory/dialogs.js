/** What is asked before much of a discussion goes. */
import { api } from "../../api.js";
import { html, useState } from "../../html.js";
import { Check, Confirm, Field } from "../../parts/elements.js";
import { navigate } from "../../routes.js";

export function WriteAnew({ base, where, onClose, onDone }) {
  const action = async () => onDone((await api("POST", `${base}/rebuild?${where}`, {})).export);
  return html`<${Confirm} title="Write all memories anew?" confirm="Write anew" onClose=${onClose} action=${action}>
    <p>Everything is exported first. Then the memories, the searchable memories, the summary and the state document are emptied.
    The next message of this discussion writes them again, from the messages that its front-end still sends.</p>
    <p>With a long conversation, that takes many calls of the LLM.</p><//>`;
}

export function DeleteDiscussion({ id, base, where, onClose }) {
  const [typed, setTyped] = useState("");
  const [runs, setRuns] = useState(false);
  const remove = async () => {
    const { left } = await api("DELETE", `${base}?${where}${runs ? "&runs=1" : ""}`);
    if (left.length) throw new Error(`Some files could not be deleted: ${left.join("; ")}`);
    navigate("#/memory");
  };
  return html`<${Confirm} title="Delete this discussion?" confirm="Delete" disabled=${typed !== id} action=${remove} onClose=${onClose}>
    <p>Its memories, its summary, its state document and everything else that is stored of it are deleted. There is no way back.</p>
    <p><${Field} label="Discussion id" value=${typed} onChange=${setTyped} autocomplete="off" /></p>
    <p class="note">Type <code>${id}</code> to delete it.</p>
    <p><${Check} label="Delete its recorded runs, too" checked=${runs} onChange=${setRuns} /></p><//>`;
}
