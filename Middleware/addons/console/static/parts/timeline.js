/** The tree of a run's spans, with a bar for each on one time axis. */
import { html, useEffect, useMemo, useState } from "../html.js";
import { useNow } from "./clock.js";
import { isUnfinished, SHAPES } from "./elements.js";
import { count, duration } from "./format.js";
import { attemptsOf, label, length, phases, startsCollapsed, title, type } from "./spans.js";
import { Tree } from "./tree.js";

const NARROW = "(max-width: 700px)";
const ROW = 26;
const NARROW_ROW = 44;
// A picture of a few pixels needs no more of the calls within a step.
const MOST_CALLS = 60;

/**
 * @param {{run: object, tree: import("./spans.js").SpanTree, selected: number | null, onSelect: (id: number) => void,
 *          live?: Map<number, {tokens: number}>}} props
 */
export function Timeline({ run, tree, selected, onSelect, live }) {
  const running = isUnfinished(run.status);
  const now = useNow(running) - run.started;
  const narrow = useNarrow();
  const [toggled, setToggled] = useState(new Map());
  const [view, setView] = useState(null);
  const moving = running ? now : 0;
  const total = useMemo(() => tree.all.reduce((end, span) => Math.max(end, span.start + span.duration),
    Math.max(1000, moving, run.ended ? run.ended - run.started : 0)), [tree, run, moving]);
  const [from, to] = view ?? [0, total];
  const place = (at) => `${((at - from) / (to - from)) * 100}%`;
  const chosen = tree.byId.get(selected);
  const rows = useMemo(() => visibleRows(tree, toggled).map(({ span, expanded }) => (
    span ? spanRow(span, expanded, { now, from, to, place }, live) : COMPLETE)), [tree, toggled, from, to, live, moving]);
  const toggle = (id, expanded) => {
    setToggled((old) => new Map(old).set(id, expanded));
    // A choice must stay visible.
    if (!expanded && isWithin(chosen, tree.byId.get(id))) onSelect(id);
  };
  const zoom = () => {
    const margin = Math.max(500, length(chosen, now) * 0.15);
    setView([Math.max(0, chosen.start - margin), Math.min(total, chosen.start + length(chosen, now) + margin)]);
  };
  const marks = Object.entries({ "first token": run.first_token, "answer complete": run.answered })
    .map(([name, at]) => ({ name, at: at - run.started })).filter(({ at }) => at >= from && at <= to);
  const times = ticks(from, to);
  return html`<div class="timeline">
    <div class="timeline-head">
      <span class="zoom">
        <button class="quiet" disabled=${!chosen || length(chosen, now) <= 0} onClick=${zoom}>Zoom to step</button>
        ${view && html`<button class="quiet" onClick=${() => setView(null)}>Whole run</button>`}
      </span>
      <div class="axis" aria-hidden="true">${times.map((at) => html`<span key=${at} class=${`num ${
        at - from > (to - from) * 0.93 ? "last" : ""}`} style=${{ left: place(at) }}>${at ? duration(at) : "0"}</span>`)}</div>
    </div>
    <div class="timeline-body">
      <div class="grid" aria-hidden="true">
        ${times.map((at) => html`<i key=${at} style=${{ left: place(at) }}></i>`)}
        ${marks.map(({ name, at }) => html`<i class="mark" key=${name} title=${name} style=${{ left: place(at) }}></i>`)}
      </div>
      <${Tree} label="Timeline" rows=${rows} chosen=${selected} rowHeight=${narrow ? NARROW_ROW : ROW} headHeight=${80}
        onChoose=${onSelect} onToggle=${toggle} />
    </div>
    <p class="legend" aria-hidden="true">${Object.entries(LEGEND).map(([kind, words]) => html`<span key=${kind}><i class=${`bar ${kind}`}></i> ${words}</span>`)}</p>
  </div>`;
}

const LEGEND = {
  load: "loading the model", read: "reading the prompt", write: "writing", wait: "waiting", tool: "tools, memory, vectors", bad: "failed",
};

const COMPLETE = {
  key: "complete", level: 1, label: "Answer complete", disabled: true, class: "separator", content: html`<span class="words">answer complete</span>`,
};

/** The rows that are not below a collapsed one, with the line between answer and background, which has no span. */
function visibleRows(tree, toggled) {
  const rows = [];
  let after = false;
  const walk = (spans) => {
    for (const span of spans) {
      if (!after && span.attributes.after_answer) {
        after = true;
        COMPLETE.level = span.level;
        rows.push({});
      }
      const expanded = span.children.length ? toggled.get(span.id) ?? !startsCollapsed(span) : undefined;
      rows.push({ span, expanded });
      if (expanded) walk(span.children);
    }
  };
  walk(tree.roots);
  return rows;
}

function spanRow(span, expanded, view, live) {
  const { attributes, status, kind } = span;
  const tokens = live?.get(span.id)?.tokens;
  const where = kind === "node" ? attributes.endpoint : kind === "llm" ? callNote(span) : "";
  return {
    key: span.id, level: span.level, expanded, label: label(span, view.now), class: `k-${kind} ${status}`,
    content: html`<span class="names">
        <span class="name">${status !== "ok" && html`<span class=${`state ${status}`}>${SHAPES[status]} </span>`}
          ${kind === "node" && html`<span class="index">${attributes["node.index"]} </span>`}${title(span)}</span>
        <span class="type">${kind === "workflow" ? "" : type(span)}</span>
        ${where && html`<span class="where">${where}</span>`}
        ${status !== "ok" && html`<span class=${`word state ${status}`}>${status}</span>`}
        ${tokens != null && html`<span class="where num">${count(tokens)} tokens</span>`}
        <span class="time num">${kind === "note" ? "" : duration(length(span, view.now))}</span>
      </span>
      <span class="bars">${bars(span, expanded, view)}</span>`,
  };
}

/** What is odd about a call: more than one attempt, a backup. */
function callNote(call) {
  const attempts = attemptsOf(call);
  const backup = attempts.find((one) => one.attributes.stands_in_for && one.status === "ok");
  return backup ? `in place of ${backup.attributes.stands_in_for}` : attempts.length > 1 ? `${attempts.length} attempts` : "";
}

function bars(span, expanded, { now, from, to, place }) {
  const { kind, start } = span;
  if (kind === "note") return html`<i class="bar note" style=${{ left: place(start) }}></i>`;
  const bar = (part, look) => {
    const begin = Math.max(part.from, from);
    const end = Math.min(part.to, to);
    return begin <= end && html`<i class=${`bar ${look}`} style=${{ left: place(begin), width: `${((end - begin) / (to - from)) * 100}%` }}></i>`;
  };
  if (kind === "llm" || kind === "attempt") return phases(span, now).map((part) => bar(part, `${part.what} ${kind}`));
  // A collapsed row, and a node, shows what the calls within it did.
  const calls = expanded && kind !== "node" ? [] : callsWithin(span, !expanded);
  return [bar({ from: start, to: start + length(span, now) }, `${kind} ${span.status}`),
    ...calls.flatMap((call) => phases(call, now).map((part) => bar(part, part.what)))];
}

function callsWithin(span, deep, found = []) {
  for (const child of span.children) {
    if (found.length > MOST_CALLS) break;
    if (child.kind === "llm") found.push(child);
    else if (deep) callsWithin(child, deep, found);
  }
  return found;
}

/** @returns {number[]} four to eight round times */
function ticks(from, to) {
  const rough = (to - from) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

function isWithin(span, outer) {
  for (let one = span?.parent; one; one = one.parent) if (one === outer) return true;
  return false;
}

function useNarrow() {
  const [narrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const look = () => setNarrow(query.matches);
    query.addEventListener("change", look);
    return () => query.removeEventListener("change", look);
  }, []);
  return narrow;
}
