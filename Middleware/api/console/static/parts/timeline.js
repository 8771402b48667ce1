/** The tree of a run's spans, with a bar for each on one time axis. */
import { html, useEffect, useMemo, useState } from "../html.js";
import { count, duration } from "./format.js";
import { label, length, phases, spanTree, startsCollapsed, title, type } from "./spans.js";
import { Tree } from "./tree.js";
import { useNow } from "./clock.js";

const NARROW = "(max-width: 700px)";
const ROW = 26;
const NARROW_ROW = 44;

/**
 * @param {{run: object, spans: import("./spans.js").SpanRow[], selected: number | null, onSelect: (id: number) => void,
 *          live?: Map<number, {tokens: number}>, tree?: import("./spans.js").SpanTree}} props
 * `tree`: made of the spans by the caller, where it needs one too
 */
export function Timeline({ run, spans, selected, onSelect, live, tree: given }) {
  const running = run.ended == null && ["queued", "running", "answered"].includes(run.status);
  const now = useNow(running) - run.started;
  const narrow = useNarrow();
  const tree = useMemo(() => given ?? spanTree(spans), [given, spans]);
  const [toggled, setToggled] = useState(/** @type {Map<number, boolean>} */ (new Map()));
  const [view, setView] = useState(null);
  const total = useMemo(() => Math.max(1000, running ? now : 0, run.ended ? run.ended - run.started : 0,
    ...ends(tree)), [tree, run, running ? now : 0]);
  const [from, to] = view ?? [0, total];
  const chosen = tree.byId.get(selected);
  const rowsOf = () => visibleRows(tree, toggled).map((item) => (
    item === SEPARATOR ? separator(item) : spanRow(item.span, item.expanded, { now, from, to, live, run })));
  const rows = useMemo(rowsOf, [tree, toggled, from, to, live, running ? now : 0, run]);
  const toggle = (id, expanded) => {
    setToggled((old) => new Map(old).set(id, expanded));
    // A choice must stay visible.
    if (!expanded && isWithin(chosen, tree.byId.get(id))) onSelect(id);
  };
  const zoom = () => {
    const margin = Math.max(500, length(chosen, now) * 0.15);
    setView([Math.max(0, chosen.start - margin), Math.min(total, chosen.start + length(chosen, now) + margin)]);
  };
  const marks = [["first token", run.first_token], ["answer complete", run.answered]]
    .filter(([, at]) => at != null).map(([name, at]) => ({ name, at: at - run.started }));
  return html`<div class=${`timeline ${narrow ? "narrow" : ""}`}>
    <div class="timeline-head">
      <span class="zoom">
        <button type="button" class="quiet" disabled=${!chosen || length(chosen, now) <= 0} onClick=${zoom}>Zoom to step</button>
        ${view && html`<button type="button" class="quiet" onClick=${() => setView(null)}>Whole run</button>`}
      </span>
      <${Axis} from=${from} to=${to} />
    </div>
    <div class="timeline-body">
      <div class="grid" aria-hidden="true">
        ${ticks(from, to).map((at) => html`<i key=${at} style=${{ left: place(at, from, to) }}></i>`)}
        ${marks.filter(({ at }) => at >= from && at <= to).map(({ name, at }) => html`<i class="mark" key=${name}
          title=${name} style=${{ left: place(at, from, to) }}></i>`)}
      </div>
      <${Tree} label="Timeline" rows=${rows} chosen=${selected} rowHeight=${narrow ? NARROW_ROW : ROW} headHeight=${80}
        onChoose=${onSelect} onToggle=${toggle} />
    </div>
    <${Legend} />
  </div>`;
}

function ends(tree) {
  // Not by spreading thousands of arguments: the longest alone.
  let end = 0;
  for (const span of tree.all) end = Math.max(end, span.start + span.duration);
  return [end];
}

const SEPARATOR = { span: null, expanded: undefined };

/** The rows that are not below a collapsed one, with the line between answer and background. */
function visibleRows(tree, toggled) {
  const rows = [];
  let after = false;
  const walk = (spans) => {
    for (const span of spans) {
      if (!after && span.attributes.after_answer) {
        after = true;
        SEPARATOR.level = span.level;
        rows.push(SEPARATOR);
      }
      const expanded = span.children.length ? toggled.get(span.id) ?? !startsCollapsed(span) : undefined;
      rows.push({ span, expanded });
      if (expanded) walk(span.children);
    }
  };
  walk(tree.roots);
  return rows;
}

function separator() {
  return { key: "complete", level: SEPARATOR.level, label: "Answer complete", disabled: true, class: "separator",
    content: html`<span class="words">answer complete</span>` };
}

const SHAPES = { error: "✕", cancelled: "◼", running: "▶", "stand-in": "◇" };

function spanRow(span, expanded, { now, from, to, live, run }) {
  const { attributes, status, kind } = span;
  const tokens = live?.get(span.id)?.tokens;
  const number = kind === "node" && attributes["node.index"] != null ? `${attributes["node.index"]} ` : "";
  const where = kind === "node" ? attributes.endpoint : kind === "llm" ? callNote(span) : "";
  return {
    key: span.id, level: span.level, expanded, label: label(span, now), class: `k-${kind} ${status}`,
    content: html`<span class="names">
        <span class="name">${SHAPES[status] && html`<span class=${`state ${status}`}>${SHAPES[status]} </span>`}
          <span class="index">${number}</span>${title(span)}</span>
        <span class="type">${kind === "node" || kind === "llm" ? type(span) : kind === "workflow" ? "" : kind}</span>
        ${where && html`<span class="where">${where}</span>`}
        ${status !== "ok" && html`<span class=${`word state ${status}`}>${status}</span>`}
        ${tokens != null && html`<span class="where num">${count(tokens)} tokens</span>`}
        <span class="time num">${kind === "note" ? "" : duration(length(span, now))}</span>
      </span>
      <span class="bars">${bars(span, expanded, now, from, to, run)}</span>`,
  };
}

/** What is odd about a call: more than one attempt, a backup. */
function callNote(span) {
  const attempts = span.children.filter((one) => one.kind === "attempt");
  const backup = attempts.find((one) => one.attributes.stands_in_for && one.status === "ok");
  if (backup) return `in place of ${backup.attributes.stands_in_for}`;
  return attempts.length > 1 ? `${attempts.length} attempts` : "";
}

function bars(span, expanded, now, from, to) {
  const end = span.start + length(span, now);
  const whole = { from: span.start, to: end };
  if (span.kind === "note") return html`<i class="bar note" style=${{ left: place(span.start, from, to) }}></i>`;
  if (span.kind === "llm" || span.kind === "attempt") {
    return phases(span, now).map((part) => bar(part, `${part.what} ${span.kind}`, from, to));
  }
  const base = bar(whole, `${span.kind} ${span.status}`, from, to);
  // A collapsed row, and a node, shows what the calls within it did.
  const calls = expanded && span.kind !== "node" ? [] : callsWithin(span, !expanded);
  return [base, ...calls.flatMap((call) => phases(call, now).map((part) => bar(part, part.what, from, to)))];
}

function callsWithin(span, deep, found = []) {
  for (const child of span.children) {
    // A picture of a few pixels needs no more of them.
    if (found.length > 60) break;
    if (child.kind === "llm") found.push(child);
    else if (deep) callsWithin(child, deep, found);
  }
  return found;
}

function bar(part, kind, from, to) {
  const begin = Math.max(part.from, from);
  const end = Math.min(part.to, to);
  if (end < from || begin > to || part.to < part.from) return null;
  const width = ((end - begin) / (to - from)) * 100;
  return html`<i class=${`bar ${kind}`} style=${{ left: place(begin, from, to), width: `${width}%` }}></i>`;
}

function place(at, from, to) {
  return `${((at - from) / (to - from)) * 100}%`;
}

/** @returns {number[]} four to eight round times */
function ticks(from, to) {
  const span = to - from;
  const rough = span / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

function Axis({ from, to }) {
  const found = ticks(from, to);
  return html`<div class="axis" aria-hidden="true">
    ${found.map((at) => html`<span key=${at} class=${`num ${at - from > (to - from) * 0.93 ? "last" : ""}`} style=${{ left: place(at, from, to) }}>${at ? duration(at) : "0"}</span>`)}
  </div>`;
}

function Legend() {
  return html`<p class="legend" aria-hidden="true">
    ${[["load", "loading the model"], ["read", "reading the prompt"], ["write", "writing"], ["wait", "waiting"],
      ["tool", "tools, memory, vectors"], ["bad", "failed"]]
      .map(([kind, words]) => html`<span key=${kind}><i class=${`bar ${kind}`}></i> ${words}</span>`)}
  </p>`;
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
