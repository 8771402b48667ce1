/** When a span began, how long it took, and, of a call, how fast it was. */
import { html } from "../../html.js";
import { useNow } from "../../parts/clock.js";
import { Facts } from "../../parts/elements.js";
import { asText, count, duration, speed } from "../../parts/format.js";
import { attemptsOf, length } from "../../parts/spans.js";

/** @param {{run: object, span: object, call: object | null, attempt: object | null}} props */
export function Timing({ run, span, call, attempt }) {
  const now = useNow(span.status === "running") - run.started;
  const attempts = call ? attemptsOf(call) : [];
  return html`<${Facts} rows=${[["Began after", duration(span.start)], ["Time", duration(length(span, now))],
      ...(call ? callRows(call, attempt ?? call) : Object.entries(span.attributes).map(([name, value]) => [name.replaceAll(/[._]/g, " "), asText(value)]))]} />
    ${attempts.length > 1 && html`<h3>attempts</h3><ol class="attempts">${attempts.map(({ id, status, attributes, ...one }) => html`<li key=${id}>
      ${attributes.endpoint ?? call.attributes.endpoint}: ${status}, ${duration(length({ status, ...one }, now))}${
      attributes["http.status"] && `, status ${attributes["http.status"]}`}${
      attributes.stands_in_for && `, in place of ${attributes.stands_in_for}`}</li>`)}</ol>`}`;
}

function callRows({ duration: whole, attributes: { time_to_first_token: first, streamed, chunks } }, { attributes: at }) {
  const [loading, reading, generating] = ["load", "prompt", "generate"].map((what) => at[`backend.${what}_ms`] && at[`backend.${what}_ms`] * 1000);
  const read = at["usage.input_tokens"];
  const written = at["usage.output_tokens"];
  const reused = at["usage.cache_read.input_tokens"];
  // Where the server does not say how long it wrote, what passed after the first token is it.
  const writing = generating ?? (first == null ? null : whole - first);
  return [
    ["First token", streamed === false ? "not streamed" : duration(first)],
    ["Loading the model", duration(loading)], ["Reading the prompt", duration(reading)], ["Writing", duration(writing)],
    ["Prompt tokens", count(read)], ["of them reused", count(reused)],
    ["stored for later", count(at["usage.cache_creation.input_tokens"])],
    ["Answer tokens", count(written)], ["of them reasoning", count(at["usage.reasoning.output_tokens"])],
    ["Reading speed", speed(read == null ? null : read - (reused ?? 0), reading)], ["Writing speed", speed(written, writing)],
    ["Chunks", count(chunks)],
  ];
}
