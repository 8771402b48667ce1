/** What is known about the chosen span. */
import { url } from "../../api.js";
import { html, useState } from "../../html.js";
import { Problem, State, Tabs } from "../../parts/elements.js";
import { CopyButton, Folded } from "../../parts/folded.js";
import { asText, counted, duration, json } from "../../parts/format.js";
import { answeringAttempt, around, callOf, title, type } from "../../parts/spans.js";
import { navigate } from "../../routes.js";
import { curl, messages } from "./payload.js";
import { Answer, NodeConfiguration, Prompt, Raw, Settings, Timing } from "./tabs.js";
import { NotKept, hasTexts, useTexts } from "./texts.js";

const TABS = {
  call: ["Prompt", "Answer", "Settings", "Timing", "Raw"], node: ["Output", "Configuration", "Timing"], other: ["Texts", "Timing"],
};
const WITHOUT_TEXTS = ["Timing", "Settings", "Configuration"];

/** The tab that was read last stays open from span to span, by kind of span. */
const lastTab = { call: "Prompt", node: "Output", other: "Texts" };

/**
 * @param {{run: object, span: import("../../parts/spans.js").Span, prefix: object, live?: {text?: string, reasoning?: string},
 *          session: object | null}} props `session`: null for a run file, about which the server knows nothing
 */
export function Details({ run, span, prefix, live, session }) {
  const isCall = span.kind === "llm" || span.kind === "attempt";
  const kind = isCall ? "call" : span.kind === "node" ? "node" : "other";
  const [tab, setTab] = useState(lastTab[kind]);
  const choose = (name) => setTab(lastTab[kind] = name);
  const call = isCall ? callOf(span) : null;
  const attempt = isCall ? answeringAttempt(span) : null;
  const node = around(span, "node");
  const id = session && run.id;
  const own = useTexts(id, span);
  const called = useTexts(id, call !== span ? call : null);
  const sent = useTexts(id, attempt !== span ? attempt : null);
  // What the tool of a node was asked, or what was looked for, says more about the node than its output alone.
  const asked = useTexts(id, kind === "node" ? span.children.find((one) => one.kind === "tool" || one.attributes.store === "messages") : null);
  const texts = { ...called.texts, ...sent.texts, ...own.texts };
  // An attempt that failed has no part in the answer.
  const answer = call === span ? { ...own.texts } : call && answeringAttempt(call) === span ? { ...called.texts } : {};
  if (live?.text !== undefined) Object.assign(answer, { answer: live.text, reasoning: live.reasoning || undefined });
  const empty = !hasTexts(run) && Object.keys(texts).length === 0;
  const same = call && (prefix[call.id] ?? prefix[span.id]);
  const content = {
    Prompt: () => html`<${Prompt} payload=${texts.payload} prefix=${same} />`,
    Answer: () => html`<${Answer} texts=${answer} error=${texts.error} status=${span.status} />`,
    Settings: () => html`<${Settings} span=${span} call=${call} attempt=${attempt} payload=${texts.payload} node=${node} />`,
    Timing: () => html`<${Timing} run=${run} span=${span} call=${call} attempt=${attempt} />`,
    Raw: () => html`<${Raw} payload=${texts.payload} answer=${answer} error=${texts.error} />`,
    Configuration: () => html`<${NodeConfiguration} run=${run} span=${span} session=${session} />`,
  };
  const copied = () => {
    if (tab === "Prompt") return messages(texts.payload).map(({ role, text }) => `${role}:\n${text}`).join("\n\n");
    if (tab === "Answer") return asText(answer.answer ?? texts.error);
    if (tab === "Raw") return json({ payload: texts.payload, ...answer });
    const values = Object.values(own.texts);
    return values.length === 1 ? asText(values[0]) : json(own.texts);
  };
  const tabs = TABS[kind].map((name) => ({ name, count: name === "Prompt" && messages(texts.payload).length || undefined }));
  return html`<section aria-label="Details">
    <div class="details-head">
      <h2>${title(span)}, ${type(span)}${node && node !== span && ` of node ${node.attributes["node.index"] ?? ""} ${title(node)}`} <${State} status=${span.status} /></h2>
      <div class="details-actions">
        ${call && id && !empty && html`<button onClick=${() => navigate(url`#/again/${id}/${call.id}`)}>Try again</button>`}
        ${attempt && texts.payload && html`<${CopyButton} label="Copy as curl" text=${() => curl(attempt, texts.payload)} />`}
        ${same?.earlier && html`<button class="quiet" onClick=${() => navigate(
          url`#/compare/${same.earlier.run}/${run.id}`)}>Compare with the call before</button>`}
        ${!empty && html`<${CopyButton} text=${copied} />`}
      </div>
    </div>
    ${[span, ...span.children].map(remembered).filter(Boolean).map((line) => html`<p class="note">${line}</p>`)}
    ${[own, called, sent, asked].map(({ error, reload }) => html`<${Problem} error=${error} retry=${reload} />`)}
    <${Tabs} label="Details" tabs=${tabs} chosen=${tab} onChoose=${choose}>
      ${empty && !WITHOUT_TEXTS.includes(tab) ? html`<${NotKept} run=${run} />` : content[tab]?.() ?? html`<${Texts} texts=${{ arguments: asked.texts.arguments, terms: asked.texts.terms, ...own.texts }} span=${span} />`}
    <//>
  </section>`;
}

/** What is known about the reading of memories or messages, in a line. @returns {string} */
function remembered({ kind, status, duration: time, attributes: { store, action, found, lines, tokens, trail } }) {
  if (kind !== "memory" || action !== "read" || status === "running") return "";
  if (store !== "messages") return trail ?? "";
  return found == null ? "" : `${counted(found, "row")} found, ${counted(lines ?? 0, "line")} of ${counted(tokens ?? 0, "token")} returned, ${duration(time)}`;
}

/** The texts of a node or of any other span, each under its name. */
function Texts({ texts, span }) {
  const named = Object.entries(texts).filter(([, value]) => value != null && value !== "");
  if (!named.length) return html`<p class="note">${span.status === "running" ? "It is still at work." : "It has no text of its own."}</p>`;
  return named.map(([name, value]) => html`<div key=${name}>
    ${(named.length > 1 || name !== "output") && html`<h3>${name.replaceAll("_", " ")}</h3>`}
    <${Folded} text=${asText(value)} label=${`${span.id} ${name}`} /></div>`);
}
