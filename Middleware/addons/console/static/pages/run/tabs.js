/** The tabs of a span: of a call what was sent, what came back, with which settings; of a node its configuration; of each its times. */
import { useApi } from "../../api.js";
import { html, useState } from "../../html.js";
import { useNow } from "../../parts/clock.js";
import { Facts, Loaded, Odd } from "../../parts/elements.js";
import { Folded } from "../../parts/folded.js";
import { asText, count, counted, duration, json, speed } from "../../parts/format.js";
import { around, attemptsOf, length } from "../../parts/spans.js";
import { may } from "../../session.js";
import { configHash, workflowPath } from "../workflows/links.js";
import { messages, settings } from "./payload.js";

// So many messages are shown one below the other; of a longer conversation the last ones, which matter most, and a button.
const SHOWN = 60;

export function Prompt({ payload, prefix }) {
  const [all, setAll] = useState(false);
  const list = messages(payload).map((message, index) => ({ ...message, number: index + 1 }));
  if (!list.length) return html`<p class="note">Nothing was sent.</p>`;
  const hidden = all ? 0 : Math.max(0, list.length - SHOWN);
  // The system prompt is what one looks for, so it is never among the hidden ones.
  const shown = list.filter(({ number }) => number === 1 || number > hidden + 1);
  return html`
    ${prefix && html`<${PrefixNote} prefix=${prefix} />`}
    ${hidden > 0 && html`<button class="quiet" onClick=${() => setAll(true)}>Show all ${counted(list.length, "message")}</button>`}
    <ol class="messages" aria-label="Messages">
      ${shown.map(({ role, text, number }) => html`<li key=${number} class=${prefix?.message === number ? "differs" : ""}>
        <div class="message-head"><b class="role">${role}</b>
          ${prefix?.message === number && html`<span class="differs-word">first difference to the call before</span>`}
          <span class="num note">${counted(text.length, "character")}</span></div>
        <${Folded} text=${text} label=${number} /></li>`)}
    </ol>`;
}

function PrefixNote({ prefix: { reused, of, text, characters, same } }) {
  return html`<div class="prefix"><b>Prefix cache</b> ${reused != null && !text?.includes("reused") && `${count(reused)} of ${count(of)} prompt tokens reused. `}${text}
    ${characters > 0 && html`<span class="share" aria-hidden="true"><i class="bar write" style=${{ flexGrow: same }}></i><i
      class="bar own" style=${{ flexGrow: characters - same }}></i></span>`}</div>`;
}

export function Answer({ texts: { answer, reasoning, tool_calls: calls }, error, status }) {
  const parts = [["error", error], ["reasoning", reasoning], ["answer", answer], ["tool calls", calls?.length && calls]].filter(([, text]) => text);
  const running = status === "running";
  return html`
    ${parts.map(([name, text]) => html`${(parts.length > 1 || name !== "answer") && html`<h3>${name}</h3>`}
      <div class=${name === "reasoning" ? "reasoning" : ""}><${Folded} text=${asText(text)} label=${name} /></div>`)}
    ${(running || !parts.length) && html`<p class="note">${!running ? "Nothing came back."
      : parts.length ? "It is still being written." : "Nothing has come yet."}</p>`}`;
}

export function Settings({ span, call, attempt, payload, node }) {
  const at = { ...call?.attributes, ...attempt?.attributes, ...span.attributes };
  const list = (names) => [names ?? []].flat().join(", ");
  const sent = settings(payload);
  // Without texts there is no payload, but the samplers are facts.
  const asked = sent.length ? sent : Object.entries(at).filter(([name]) => name.startsWith("request.")).map(([name, value]) => [name.slice(8), value]);
  return html`
    <${Facts} rows=${[
      ["Endpoint", call?.attributes.endpoint ?? at.endpoint], ["In place of", at.stands_in_for], ["Failed before", list(at.failed_endpoints)],
      ["Preset", node?.attributes.preset],
      ["Server", at["server.address"] && [at["server.address"], at["server.port"]].filter(Boolean).join(":")],
      ["Kind of server", at["provider.name"]], ["Operation", at["operation.name"]], ["Model asked for", at["request.model"]],
      ["Model that answered", at["response.model"]], ["Ended because", list(at["response.finish_reasons"])],
      ["Status of the answer", at["http.status"]], ["Messages left out", at.dropped_messages || null],
      ["Refused by the server", list(at.left_out)], ["Empty answer", at.empty],
    ]} />
    <h3>sent with the prompt</h3>
    ${asked.length ? html`<${Facts} look="facts mono" rows=${asked.map(([name, value]) => [name, typeof value === "string" ? value : json(value)])} />`
      : html`<p class="note">Nothing but the prompt.</p>`}`;
}

export function Raw({ payload, answer, error }) {
  const came = Object.fromEntries(Object.entries({ ...answer, error }).filter(([, value]) => value != null && value !== ""));
  return html`<h3>sent</h3><${Folded} text=${payload === undefined ? "nothing" : json(payload)} label="sent" />
    <h3>came back</h3><${Folded} text=${Object.keys(came).length ? json(came) : "nothing"} label="came back" />`;
}

/** @param {{run: object, span: import("../../parts/spans.js").Span, session: object | null}} props */
export function NodeConfiguration({ run, span, session }) {
  const { attributes } = span;
  const workflow = around(span, "workflow");
  const folder = workflow?.attributes.folder;
  const name = workflow?.attributes["workflow.name"] ?? workflow?.name;
  const index = attributes["node.index"];
  const askable = session && may(session, "all") && folder && name;
  const today = useApi(askable ? workflowPath(`${folder}/${name}`) : null);
  const shown = ({ path, hash, nodes }) => {
    const node = nodes.find((one) => one.index === index);
    const line = node && configHash(session, path, node.line);
    const then = run.config?.find((file) => file.path === path)?.hash;
    return html`${line && html`<p><a href=${line}>Line ${node.line}</a></p>`}
      ${then && hash !== then && html`<${Odd}>The file has changed since this run; below is what it says today.<//>`}
      ${node ? html`<${Folded} text=${asText(node.json)} label=${`${folder} ${name} ${index}`} />`
        : html`<p class="note">The workflow no longer has a node at this place.</p>`}`;
  };
  return html`<${Facts} rows=${[["Workflow", name], ["Folder", folder], ["Node", index], ["Type", attributes["node.type"]],
    ["Endpoint", attributes.endpoint], ["Preset", attributes.preset]]} />
    ${askable && html`<${Loaded} from=${today}>${shown}<//>`}`;
}

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
