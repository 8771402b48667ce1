/** Search and filters above the list of runs. */
import { html, instead, useEffect, useRef, useState } from "../../html.js";
import { Check, Choice } from "../../parts/elements.js";
import { OpenRunFile } from "../../parts/run_file.js";
import { TIMES } from "./query.js";

// So long after the last key the search begins by itself.
const TYPING_MS = 300;

const STATUSES = ["running", "answered", "queued", "ok", "failed", "cancelled", "refused", "interrupted"];
const KINDS = ["chat", "task", "playground", "replay", "again"];

export function Search({ query, change, field }) {
  const asked = query.get("q") ?? "";
  const [text, setText] = useState(asked);
  const timer = useRef(0);
  useEffect(() => setText(asked), [asked]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const later = (value) => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ q: value.trim() }), TYPING_MS);
  };
  const now = instead(() => {
    clearTimeout(timer.current);
    change({ q: text.trim() });
  });
  const onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    if (text) later("");
    else event.currentTarget.blur();
  };
  return html`<form class="search" role="search" onSubmit=${now}>
    <input type="text" ref=${field} aria-label="Search runs" placeholder="Search runs" value=${text} spellcheck=${false}
      autocomplete="off" onInput=${(event) => later(event.currentTarget.value)} onKeyDown=${onKeyDown} />
    <${Check} label="Search all texts" checked=${query.get("all") === "1"} onChange=${(on) => change({ all: on ? "1" : "" })} />
  </form>`;
}

export function Filters({ query, change, choices, runs }) {
  // Until the server has said which there are: those that are listed.
  const names = (name, one = name) => choices?.[name] ?? [...new Set(runs.flatMap((run) => run[one]).filter(Boolean))].sort();
  const choice = (label, options) => {
    const name = label.toLowerCase();
    return html`<${Choice} label=${label} value=${query.get(name) ?? ""} options=${options} onChange=${(value) => change({ [name]: value })} />`;
  };
  const all = ["", "all"];
  return html`<div class="filters">
    ${choice("Status", [all, ...STATUSES])}
    ${choice("Workflow", [all, ...names("workflow")])}
    ${choice("Endpoint", [all, ...names("endpoint", "endpoints")])}
    ${choice("User", [all, ...names("user")])}
    ${choice("Kind", [all, ...KINDS])}
    ${choice("Time", TIMES)}
    ${query.get("discussion") && html`<span class="field"><span>Discussion ${query.get("discussion")}</span>
      <button class="quiet" onClick=${() => change({ discussion: "" })}>Show all discussions</button></span>`}
    <span class="push"><${OpenRunFile} /></span>
  </div>`;
}
