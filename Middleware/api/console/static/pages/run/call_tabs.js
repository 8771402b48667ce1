/** The tabs of a call: what was sent, what came back, with which settings. */
import { html, useState } from "../../html.js";
import { count, counted } from "../../parts/format.js";
import { Folded } from "../../parts/folded.js";
import { asText, json, messages, settings } from "./payload.js";

// So many messages are shown one below the other; of a longer conversation the last ones, which matter most, and a button.
const SHOWN = 60;

/** @param {{payload: any, prefix?: object}} props */
export function Prompt({ payload, prefix }) {
  const [all, setAll] = useState(false);
  const list = messages(payload);
  if (!list.length) return html`<p class="quiet-text">Nothing was sent.</p>`;
  const hidden = all ? 0 : Math.max(0, list.length - SHOWN);
  // The system prompt is what one looks for, so it is never among the hidden ones.
  const shown = list.map((message, index) => ({ ...message, number: index + 1 })).filter(({ number }) => number === 1 || number > hidden + 1);
  return html`
    <${PrefixNote} prefix=${prefix} />
    ${hidden > 0 && html`<button type="button" class="quiet" onClick=${() => setAll(true)}>Show all ${counted(list.length, "message")}</button>`}
    <ol class="messages" aria-label="Messages">
      ${shown.map(({ role, text, number }) => html`<li key=${number} class=${prefix?.message === number ? "differs" : ""}>
        <div class="message-head"><b class="role">${role}</b>
          ${prefix?.message === number && html`<span class="differs-word">first difference to the call before</span>`}
          <span class="num quiet-text">${counted(text.length, "character")}</span></div>
        <${Folded} text=${text} label=${number} /></li>`)}
    </ol>`;
}

function PrefixNote({ prefix }) {
  if (!prefix) return null;
  const reused = prefix.reused != null && `${count(prefix.reused)} of ${count(prefix.of)} prompt tokens reused.`;
  return html`<div class="prefix"><b>Prefix cache</b> ${reused && !prefix.text?.includes("reused") ? `${reused} ` : ""}${prefix.text}
    ${prefix.characters > 0 && html`<span class="share" aria-hidden="true"><i class="bar write" style=${{ flexGrow: prefix.same }}></i><i
      class="bar own" style=${{ flexGrow: prefix.characters - prefix.same }}></i></span>`}</div>`;
}

/** @param {{texts: {[name: string]: any}, error?: any, status: string}} props */
export function Answer({ texts, error, status }) {
  const { answer, reasoning, tool_calls: calls } = texts;
  const nothing = !answer && !reasoning && !calls?.length && !error;
  return html`
    ${error && html`<h3>error</h3><${Folded} text=${asText(error)} />`}
    ${reasoning && html`<h3>reasoning</h3><div class="reasoning"><${Folded} text=${asText(reasoning)} label="reasoning" /></div>`}
    ${answer && html`${(reasoning || calls?.length > 0) && html`<h3>answer</h3>`}<${Folded} text=${asText(answer)} label="answer" />`}
    ${calls?.length > 0 && html`<h3>tool calls</h3><${Folded} text=${json(calls)} label="tool calls" />`}
    ${nothing && html`<p class="quiet-text">${status === "running" ? "Nothing has come yet." : "Nothing came back."}</p>`}
    ${status === "running" && !nothing && html`<p class="quiet-text">It is still being written.</p>`}`;
}

/** @param {{span: object, call: object, attempt: object | null, payload: any, node: object | null}} props */
export function Settings({ span, call, attempt, payload, node }) {
  const at = { ...call?.attributes, ...attempt?.attributes, ...span.attributes };
  const port = at["server.port"] ? `:${at["server.port"]}` : "";
  const rows = [
    ["Endpoint", call?.attributes.endpoint ?? at.endpoint], ["In place of", at.stands_in_for],
    ["Failed before", [at.failed_endpoints ?? []].flat().join(", ")],
    ["Preset", node?.attributes.preset], ["Server", at["server.address"] && `${at["server.address"]}${port}`],
    ["Kind of server", at["provider.name"]], ["Operation", at["operation.name"]], ["Model asked for", at["request.model"]],
    ["Model that answered", at["response.model"]], ["Ended because", [at["response.finish_reasons"] ?? []].flat().join(", ")],
    ["Status of the answer", at["http.status"]], ["Messages left out", at.dropped_messages],
  ].filter(([, value]) => value != null && value !== "" && value !== 0);
  const sent = settings(payload);
  // Without texts there is no payload, but the samplers are facts.
  const asked = sent.length ? sent : Object.entries(at).filter(([name]) => name.startsWith("request.")).map(([name, value]) => [name.slice(8), value]);
  return html`<dl class="facts">${rows.map(pair)}</dl>
    <h3>sent with the prompt</h3>
    ${asked.length ? html`<dl class="facts mono">${asked.map(([name, value]) => pair([name, asText(value)]))}</dl>`
      : html`<p class="quiet-text">Nothing but the prompt.</p>`}`;
}

const pair = ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`;

/** @param {{payload: any, answer: {[name: string]: any}, error?: any}} props */
export function Raw({ payload, answer, error }) {
  const came = Object.fromEntries(Object.entries({ ...answer, error }).filter(([, value]) => value != null && value !== ""));
  return html`<h3>sent</h3><${Folded} text=${payload === undefined ? "nothing" : json(payload)} label="sent" />
    <h3>came back</h3><${Folded} text=${Object.keys(came).length ? json(came) : "nothing"} label="came back" />`;
}
