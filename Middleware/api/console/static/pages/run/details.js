/** What is known about the chosen span. */
import { html, useEffect, useState } from "../../html.js";
import { Problem } from "../../parts/alert.js";
import { CopyButton, Folded } from "../../parts/folded.js";
import { answeringAttempt, nodeOf, title, type } from "../../parts/spans.js";
import { State } from "../../parts/state.js";
import { Tabs } from "../../parts/tabs.js";
import { hasPage, navigate } from "../../routes.js";
import { Answer, Prompt, Raw, Settings } from "./call_tabs.js";
import { NodeConfiguration } from "./configuration_tab.js";
import { asText, curl, json, messages } from "./payload.js";
import { NotKept, hasTexts, useTexts } from "./texts.js";
import { Timing } from "./timing_tab.js";

/** The tab that was read last stays open from span to span, by kind of span. */
const lastTab = new Map();

const NAMES = {
  call: ["Prompt", "Answer", "Settings", "Timing", "Raw"], node: ["Output", "Configuration", "Timing"], other: ["Texts", "Timing"],
};

/**
 * @param {{run: object, span: import("../../parts/spans.js").Span, prefix: object, live?: {text?: string, reasoning?: string},
 *          local?: boolean, session: object | null}} props `local`: a run file, about which the server knows nothing
 */
export function Details({ run, span, prefix, live, local = false, session }) {
  const kind = span.kind === "llm" || span.kind === "attempt" ? "call" : span.kind === "node" ? "node" : "other";
  const [tab, setTab] = useState(lastTab.get(kind) ?? NAMES[kind][0]);
  useEffect(() => setTab(lastTab.get(kind) ?? NAMES[kind][0]), [kind]);
  const chosen = NAMES[kind].includes(tab) ? tab : NAMES[kind][0];
  const choose = (name) => { lastTab.set(kind, name); setTab(name); };
  const call = kind !== "call" ? null : span.kind === "llm" ? span : span.parent?.kind === "llm" ? span.parent : span;
  const attempt = kind === "call" ? answeringAttempt(span) : null;
  const id = local ? null : run.id;
  const own = useTexts(id, span);
  const called = useTexts(id, call && call !== span ? call : null);
  const sent = useTexts(id, attempt && attempt !== span ? attempt : null);
  const texts = { ...called.texts, ...sent.texts, ...own.texts };
  // An attempt that failed has no part in the answer.
  const answer = call && (span.kind === "llm" || answeringAttempt(call) === span) ? { ...called.texts, ...(span.kind === "llm" ? own.texts : {}) } : {};
  if (live?.text !== undefined) Object.assign(answer, { answer: live.text, reasoning: live.reasoning || undefined });
  const error = own.error ?? called.error ?? sent.error;
  const empty = !hasTexts(run) && Object.keys(texts).length === 0;
  const counts = call && !empty ? { Prompt: messages(texts.payload).length || undefined } : {};
  const content = () => {
    switch (chosen) {
      case "Prompt": return html`<${Prompt} payload=${texts.payload} prefix=${prefix[call.id] ?? prefix[span.id]} />`;
      case "Answer": return html`<${Answer} texts=${answer} error=${texts.error} status=${span.status} />`;
      case "Settings": return html`<${Settings} span=${span} call=${call} attempt=${attempt} payload=${texts.payload} node=${nodeOf(span)} />`;
      case "Timing": return html`<${Timing} run=${run} span=${span} call=${call} attempt=${attempt} />`;
      case "Raw": return html`<${Raw} payload=${texts.payload} answer=${answer} error=${texts.error} />`;
      case "Configuration": return html`<${NodeConfiguration} run=${run} span=${span} session=${session} local=${local} />`;
      default: return html`<${Texts} texts=${own.texts} span=${span} />`;
    }
  };
  const needsTexts = !["Timing", "Settings", "Configuration"].includes(chosen);
  return html`<section class="details" aria-label="Details">
    <div class="details-head">
      <h2>${heading(span)} <${State} status=${span.status} /></h2>
      <div class="details-actions">
        ${call && !local && !empty && hasPage("again/*/*") && html`<button type="button"
          onClick=${() => navigate(`#/again/${encodeURIComponent(run.id)}/${call.id}`)}>Try again</button>`}
        ${texts.payload && attempt && html`<${CopyButton} label="Copy as curl" text=${() => curl(attempt, texts.payload)} />`}
        <${CallBefore} run=${run} prefix=${call && (prefix[call.id] ?? prefix[span.id])} />
        ${!empty && html`<${CopyButton} text=${() => copied(chosen, texts, answer, own.texts)} />`}
      </div>
    </div>
    <${Problem} error=${error} retry=${() => [own, called, sent].forEach((one) => one.error && one.reload())} />
    <${Tabs} label="Details" tabs=${NAMES[kind].map((name) => ({ name, count: counts[name] }))} chosen=${chosen} onChoose=${choose}>
      ${empty && needsTexts ? html`<${NotKept} run=${run} />` : content()}
    <//>
  </section>`;
}

function heading(span) {
  const node = nodeOf(span);
  const name = title(span);
  if (node === span || !node) return `${name}, ${type(span)}`;
  const number = node.attributes["node.index"];
  return `${name}, ${type(span)} of node ${number != null ? `${number} ` : ""}${title(node)}`;
}

function CallBefore({ run, prefix }) {
  const earlier = prefix?.earlier;
  if (!earlier || !hasPage("compare/*/*")) return null;
  return html`<button type="button" class="quiet" onClick=${() => navigate(
    `#/compare/${encodeURIComponent(earlier.run)}/${encodeURIComponent(run.id)}`)}>Compare with the call before</button>`;
}

function copied(tab, texts, answer, own) {
  if (tab === "Prompt") return messages(texts.payload).map(({ role, text }) => `${role}:\n${text}`).join("\n\n");
  if (tab === "Answer") return asText(answer.answer ?? texts.error ?? "");
  if (tab === "Raw") return json({ payload: texts.payload, ...answer });
  const values = Object.values(own);
  return values.length === 1 ? asText(values[0]) : json(own);
}

/** The texts of a node or of any other span, each under its name. */
function Texts({ texts, span }) {
  const named = Object.entries(texts).filter(([, value]) => value != null && value !== "");
  if (!named.length) {
    return html`<p class="quiet-text">${span.status === "running" ? "It is still at work." : "It has no text of its own."}</p>`;
  }
  return named.map(([name, value]) => html`<div key=${name}>
    ${(named.length > 1 || name !== "output") && html`<h3>${name.replaceAll("_", " ")}</h3>`}
    <${Folded} text=${asText(value)} label=${`${span.id} ${name}`} /></div>`);
}
