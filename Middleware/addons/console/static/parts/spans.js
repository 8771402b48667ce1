/** The spans of a run as the API sends them, made into a tree with titles. Pure functions. */
import { duration, plain } from "./format.js";

/**
 * @typedef {[id: number, parent: number | null, kind: string, name: string, start: number, duration: number,
 *            status: string, attributes: {[name: string]: any}, texts: {[name: string]: any}]} SpanRow
 * @typedef {{id: number, parent: Span | null, kind: string, name: string, start: number, duration: number, status: string,
 *            attributes: {[name: string]: any}, texts: {[name: string]: any}, children: Span[], level: number}} Span
 * @typedef {{roots: Span[], all: Span[], byId: Map<number, Span>}} SpanTree `all`: parents before children, by start
 */

/** @param {SpanRow[]} rows @returns {SpanTree} */
export function spanTree(rows) {
  const byId = new Map(rows.map(([id, , kind, name, start, length, status, attributes, texts]) => [id, {
    id, parent: null, kind, name, start, duration: length, status, attributes: attributes ?? {}, texts: texts ?? {}, children: [], level: 1 }]));
  const roots = [];
  const parents = new Map(rows);
  // A file may have an id several times: a span that its parent has twice would double with each level below it.
  for (const span of byId.values()) {
    // The parent may be one of those that a very long run leaves out.
    span.parent = byId.get(parents.get(span.id)) ?? null;
    (span.parent?.children ?? roots).push(span);
  }
  const all = [];
  const walk = (spans, level) => {
    spans.sort((a, b) => a.start - b.start || a.id - b.id);
    for (const span of spans) {
      span.level = level;
      all.push(span);
      walk(span.children, level + 1);
    }
  };
  walk(roots, 1);
  return { roots, all, byId };
}

const WAITS = { gate: "Waiting at the gate", lock: "Waiting for a lock", turn: "Waiting for a turn" };

/** @param {Span} span @returns {string} */
export function title(span) {
  const { attributes, name } = span;
  switch (span.kind) {
    case "workflow": return attributes["workflow.name"] || name || "Workflow";
    case "node": return attributes["node.title"] || name || `Node ${attributes["node.index"] ?? ""}`.trim();
    case "llm": return attributes.endpoint || name || "LLM";
    case "attempt": return `${attributes.endpoint || name || span.parent?.attributes.endpoint || "LLM"} attempt ${
      span.parent ? attemptsOf(span.parent).indexOf(span) + 1 : 1}`;
    case "wait": return WAITS[attributes.for] || name || "Waiting";
    case "route": return attributes.chosen ? `Route: ${attributes.chosen}` : "Route";
    case "tool": return attributes["tool.name"] || name || "Tool";
    case "memory": return name || [attributes.action, attributes.store].filter(Boolean).join(" ") || "Memory";
    default: return name || span.kind;
  }
}

/** @param {Span} span @returns {string} the type of a node, else the kind */
export function type(span) {
  if (span.kind === "node") return span.attributes["node.type"] || "node";
  return span.kind === "llm" ? "call" : span.kind;
}

/** @param {Span} span @param {number} now microseconds since the start of the run @returns {number} */
export function length(span, now) {
  return span.status === "running" ? Math.max(0, now - span.start) : span.duration;
}

/** The accessible name: `Analyse, Standard, 1.2 s, ok`. @param {Span} span @param {number} now */
export function label(span, now) {
  return plain(`${title(span)}, ${type(span)}, ${duration(length(span, now))}, ${span.status}`);
}

/** @param {Span} call @returns {Span[]} */
export const attemptsOf = (call) => call.children.filter((one) => one.kind === "attempt");

/** @param {Span} span an attempt or a call @returns {Span} the call; an attempt without one is its own */
export const callOf = (span) => around(span, "llm") ?? span;

/** @param {Span} call @returns {Span | null} the attempt that answered, else the last one */
export function answeringAttempt(call) {
  if (call.kind === "attempt") return call;
  const attempts = attemptsOf(call);
  return attempts.findLast((one) => one.status !== "error") ?? attempts.at(-1) ?? null;
}

/** @param {Span} span @param {string} kind @returns {Span | null} the innermost span of that kind around it, or itself */
export function around(span, kind) {
  let one = span;
  while (one && one.kind !== kind) one = one.parent;
  return one ?? null;
}

/**
 * What a call did when: loading the model, reading the prompt, writing.
 * @param {Span} span of the kind `llm` or `attempt` @param {number} now
 * @returns {{from: number, to: number, what: "load" | "read" | "write" | "bad"}[]} times of the run
 */
export function phases(span, now) {
  const end = span.start + length(span, now);
  if (["error", "cancelled"].includes(span.status)) return [{ from: span.start, to: end, what: "bad" }];
  const attempt = answeringAttempt(span) ?? span;
  const failed = span === attempt ? [] : attemptsOf(span).filter((one) => one.status === "error")
    .map((one) => ({ from: one.start, to: one.start + one.duration, what: "bad" }));
  const told = (name) => (attempt.attributes[name] ?? span.attributes[name] ?? 0) * 1000;
  const loaded = Math.min(attempt.start + told("backend.load_ms"), end);
  const call = callOf(span);
  // Counted from the start of the call as its node sees it.
  const first = call.start + (call.attributes.time_to_first_token ?? NaN);
  // A whole answer has no first token; the server may say how long it read.
  const read = first >= attempt.start && first <= end ? Math.max(first, loaded)
    : span.status === "running" ? end : Math.min(loaded + told("backend.prompt_ms"), end);
  return [...failed, { from: attempt.start, to: loaded, what: "load" }, { from: loaded, to: read, what: "read" }, { from: read, to: end, what: "write" }]
    .filter(({ from, to }) => to > from);
}

/** Whether a span is shown with its children hidden: a call whose only attempt succeeded says nothing more. */
export function startsCollapsed(span) {
  return span.kind === "llm" && span.children.length <= 1 && span.children.every((one) => one.status === "ok");
}
