/** The tabs of a call: what was sent, what came back, with which settings. */
import { html, useState } from "../../html.js";
import { Facts } from "../../parts/elements.js";
import { Folded } from "../../parts/folded.js";
import { asText, count, counted, json } from "../../parts/format.js";
import { messages, settings } from "./payload.js";

// So many messages are shown one below the other; of a longer conversation the last ones, which matter most, and a button.
const SHOWN = 60;

/** @param {{payload: any, prefix?: object}} props */
export function Prompt({ payload, prefix }) {
  const [all, setAll] = useState(false);
  const list = messages(payload).map((message, index) => ({ ...message, number: index + 1 }));
  if (!list.length) return html`<p class="quiet-text">Nothing was sent.</p>`;
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
          <span class="num quiet-text">${counted(text.length, "character")}</span></div>
        <${Folded} text=${text} label=${number} /></li>`)}
    </ol>`;
}

function PrefixNote({ prefix: { reused, of, text, characters, same } }) {
  return html`<div class="prefix"><b>Prefix cache</b> ${reused != null && !text?.includes("reused") && `${count(reused)} of ${count(of)} prompt tokens reused. `}${text}
    ${characters > 0 && html`<span class="share" aria-hidden="true"><i class="bar write" style=${{ flexGrow: same }}></i><i
      class="bar own" style=${{ flexGrow: characters - same }}></i></span>`}</div>`;
}

/** @param {{texts: {[name: string]: any}, error?: any, status: string}} props */
export function Answer({ texts: { answer, reasoning, tool_calls: calls }, error, status }) {
  const parts = [["error", error], ["reasoning", reasoning], ["answer", answer], ["tool calls", calls?.length && calls]].filter(([, text]) => text);
  const running = status === "running";
  return html`
    ${parts.map(([name, text]) => html`${(parts.length > 1 || name !== "answer") && html`<h3>${name}</h3>`}
      <div class=${name === "reasoning" ? "reasoning" : ""}><${Folded} text=${asText(text)} label=${name} /></div>`)}
    ${(running || !parts.length) && html`<p class="quiet-text">${!running ? "Nothing came back."
      : parts.length ? "It is still being written." : "Nothing has come yet."}</p>`}`;
}

/** @param {{span: object, call: object, attempt: object | null, payload: any, node: object | null}} props */
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
    ]} />
    <h3>sent with the prompt</h3>
    ${asked.length ? html`<${Facts} look="facts mono" rows=${asked.map(([name, value]) => [name, typeof value === "string" ? value : json(value)])} />`
      : html`<p class="quiet-text">Nothing but the prompt.</p>`}`;
}

/** @param {{payload: any, answer: {[name: string]: any}, error?: any}} props */
export function Raw({ payload, answer, error }) {
  const came = Object.fromEntries(Object.entries({ ...answer, error }).filter(([, value]) => value != null && value !== ""));
  return html`<h3>sent</h3><${Folded} text=${payload === undefined ? "nothing" : json(payload)} label="sent" />
    <h3>came back</h3><${Folded} text=${Object.keys(came).length ? json(came) : "nothing"} label="came back" />`;
}
