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
  const byId = new Map();
  for (const [id, , kind, name, start, length, status, attributes, texts] of rows) {
    byId.set(id, { id, parent: null, kind, name, start, duration: length, status, attributes: attributes ?? {},
      texts: texts ?? {}, children: [], level: 1 });
  }
  const roots = [];
  for (const [id, parentId] of rows) {
    const span = byId.get(id);
    // The parent may be one of those that a very long run leaves out.
    span.parent = byId.get(parentId) ?? null;
    (span.parent ? span.parent.children : roots).push(span);
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
    case "attempt": return `${attributes.endpoint || name || span.parent?.attributes.endpoint || "LLM"} attempt ${attemptNumber(span)}`;
    case "wait": return WAITS[attributes.for] || name || "Waiting";
    case "route": return attributes.chosen ? `Route: ${attributes.chosen}` : "Route";
    case "tool": return attributes["tool.name"] || name || "Tool";
    case "memory": return name || [attributes.action, attributes.store].filter(Boolean).join(" ") || "Memory";
    default: return name || span.kind;
  }
}

/** @param {Span} span @returns {number} from 1 among the attempts of its call */
function attemptNumber(span) {
  const attempts = (span.parent?.children ?? [span]).filter((one) => one.kind === "attempt");
  return attempts.indexOf(span) + 1;
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

/** @param {Span} call @returns {Span | null} the attempt that answered, else the last one */
export function answeringAttempt(call) {
  if (call.kind === "attempt") return call;
  const attempts = call.children.filter((one) => one.kind === "attempt");
  return attempts.findLast((one) => one.status !== "error") ?? attempts.at(-1) ?? null;
}

/** @param {Span} span @returns {Span | null} the node around it, or itself */
export function nodeOf(span) {
  for (let one = span; one; one = one.parent) if (one.kind === "node") return one;
  return null;
}

/** @param {Span} span @returns {Span | null} the workflow around it, or itself */
export function workflowOf(span) {
  for (let one = span; one; one = one.parent) if (one.kind === "workflow") return one;
  return null;
}

/**
 * What a call did when: loading the model, reading the prompt, writing.
 * @param {Span} span of the kind `llm` or `attempt` @param {number} now
 * @returns {{from: number, to: number, what: "load" | "read" | "write" | "bad" | "wait"}[]} times of the run
 */
export function phases(span, now) {
  const end = span.start + length(span, now);
  if (span.status === "error" || span.status === "cancelled") return [{ from: span.start, to: end, what: "bad" }];
  const attempt = answeringAttempt(span) ?? span;
  const failed = span === attempt ? [] : span.children
    .filter((one) => one.kind === "attempt" && one.status === "error")
    .map((one) => ({ from: one.start, to: one.start + one.duration, what: "bad" }));
  const begin = attempt.start;
  const get = (name) => attempt.attributes[name] ?? span.attributes[name];
  const load = Math.min((get("backend.load_ms") ?? 0) * 1000, end - begin);
  const first = firstToken(span, attempt, begin, end);
  const parts = [...failed];
  if (load > 0) parts.push({ from: begin, to: begin + load, what: "load" });
  if (first === null) {
    // A whole answer has no first token; the server may say how long it read.
    const read = Math.min((get("backend.prompt_ms") ?? 0) * 1000, end - begin - load);
    if (span.status === "running") parts.push({ from: begin + load, to: end, what: "read" });
    else {
      if (read > 0) parts.push({ from: begin + load, to: begin + load + read, what: "read" });
      parts.push({ from: begin + load + read, to: end, what: "write" });
    }
    return parts;
  }
  if (first > begin + load) parts.push({ from: begin + load, to: first, what: "read" });
  parts.push({ from: Math.max(first, begin + load), to: end, what: "write" });
  return parts;
}

/** The time of the first token, counted from the start of the call as its node sees it. */
function firstToken(span, attempt, begin, end) {
  const call = span.kind === "llm" ? span : span.parent?.kind === "llm" ? span.parent : span;
  const after = call.attributes.time_to_first_token;
  if (after == null) return null;
  const at = call.start + after;
  return at >= begin && at <= end ? at : null;
}

/** Whether a span is shown with its children hidden: a call whose only attempt succeeded says nothing more. */
export function startsCollapsed(span) {
  return span.kind === "llm" && span.children.length <= 1 && span.children.every((one) => one.status === "ok");
}
