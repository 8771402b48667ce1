/** When a span began, how long it took, and, of a call, how fast it was. */
import { html } from "../../html.js";
import { count, duration, speed } from "../../parts/format.js";
import { length } from "../../parts/spans.js";
import { useNow } from "../../parts/clock.js";

/** @param {{run: object, span: object, call: object | null, attempt: object | null}} props */
export function Timing({ run, span, call, attempt }) {
  const now = useNow(span.status === "running") - run.started;
  const rows = [
    ["Began after", duration(span.start)], ["Time", duration(length(span, now))],
    ...(call ? callRows(call, attempt ?? call) : otherRows(span)),
  ];
  const attempts = call?.children.filter((one) => one.kind === "attempt") ?? [];
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd class="num">${value}</dd></div>`)}</dl>
    ${attempts.length > 1 && html`<h3>attempts</h3><ol class="attempts">${attempts.map((one) => html`<li key=${one.id}>
      ${one.attributes.endpoint ?? call.attributes.endpoint}: ${one.status}, ${duration(length(one, now))}${
      one.attributes["http.status"] ? `, status ${one.attributes["http.status"]}` : ""}${
      one.attributes.stands_in_for ? `, in place of ${one.attributes.stands_in_for}` : ""}</li>`)}</ol>`}`;
}

const milliseconds = (value) => (value == null ? null : value * 1000);

function callRows(call, attempt) {
  const at = attempt.attributes;
  const read = at["usage.input_tokens"];
  const reused = at["usage.cache_read.input_tokens"];
  const written = at["usage.output_tokens"];
  const first = call.attributes.time_to_first_token;
  const reading = milliseconds(at["backend.prompt_ms"]);
  // Where the server does not say how long it wrote, what passed after the first token is it.
  const writing = milliseconds(at["backend.generate_ms"]) ?? (first == null ? null : call.duration - first);
  return [
    ["First token", call.attributes.streamed === false ? "not streamed" : duration(first)],
    ["Loading the model", duration(milliseconds(at["backend.load_ms"]))],
    ["Reading the prompt", duration(reading)], ["Writing", duration(writing)],
    ["Prompt tokens", count(read)], ["of them reused", count(reused)],
    ["stored for later", count(at["usage.cache_creation.input_tokens"])],
    ["Answer tokens", count(written)], ["of them reasoning", count(at["usage.reasoning.output_tokens"])],
    ["Reading speed", speed(read == null ? null : read - (reused ?? 0), reading)], ["Writing speed", speed(written, writing)],
    ["Chunks", count(call.attributes.chunks)],
  ];
}

function otherRows({ attributes }) {
  return Object.entries(attributes).filter(([, value]) => value != null && value !== "")
    .map(([name, value]) => [name.replaceAll(/[._]/g, " "), typeof value === "object" ? JSON.stringify(value) : String(value)]);
}
