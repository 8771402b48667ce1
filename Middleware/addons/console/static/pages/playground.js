/** The page Playground: a request as a client would send it, and the timeline of its answer. */
import { url, useApi } from "../api.js";
import { html, instead, useEffect, useMemo, useRef, useState } from "../html.js";
import { conversationOf } from "../parts/conversation.js";
import { Area, Choice, Field, Problem, Title } from "../parts/elements.js";
import { useRun } from "../parts/run_data.js";
import { spanTree } from "../parts/spans.js";
import { Timeline } from "../parts/timeline.js";

/** @typedef {import("../parts/conversation.js").Conversation} Conversation */

const STATES = { stopped: "stopped", cut: "cut at its limit", failed: "failed" };

export default function Playground({ session }) {
  const talk = conversationOf(session);
  const [, draw] = useState({});
  useEffect(() => talk.watch(() => draw({})), [talk]);
  const run = talk.turns.findLast((turn) => turn.run)?.run;
  return html`
    <${Title}>Playground<//>
    <p class="note">This is a real request: it runs the workflow of the model, and if there is a discussion id, memories are written.</p>
    <div class="pair">
      <div>
        <${Choices} talk=${talk} />
        <${Log} talk=${talk} />
        <${Composer} talk=${talk} />
      </div>
      <section aria-label="Steps of the answer">
        ${run ? html`<${Steps} id=${run} key=${run} />` : html`<p class="note">The steps of the answer appear here while it is made.</p>`}
      </section>
    </div>`;
}

/** @param {{talk: Conversation}} props */
function Choices({ talk }) {
  const playground = useApi("playground");
  const { data } = playground;
  const models = (data?.models ?? []).map(({ id }) => id);
  useEffect(() => {
    if (data && !models.includes(talk.model)) talk.set({ model: models[0] ?? "" });
  }, [data]);
  return html`
    <${Problem} error=${playground.error} retry=${playground.reload} />
    <div class="fields">
      <${Choice} label="Model" value=${talk.model} options=${models} onChange=${(model) => talk.set({ model })} />
      <${Field} label="Discussion id" value=${talk.discussion} placeholder="none" autocomplete="off"
        onChange=${(discussion) => talk.set({ discussion })} />
    </div>
    <${Area} label="System prompt" rows="2" value=${talk.system} onChange=${(system) => talk.set({ system })} />`;
}

/** @param {{talk: Conversation}} props */
function Log({ talk: { turns, running, again } }) {
  const box = useRef(null);
  const following = useRef(true);
  useEffect(() => {
    // Someone who has scrolled up is reading.
    if (following.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const onScroll = ({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
    following.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  return html`
    <div role="log" aria-label="Conversation" aria-busy=${String(!!running)} class="conversation" tabindex="0" ref=${box} onScroll=${onScroll}>
      ${turns.map((turn, n) => html`<${Said} turn=${turn} key=${n} retry=${n === turns.length - 1 && again} />`)}
      ${!turns.length && html`<p class="note">There are no messages yet. They stay here until this tab is closed.</p>`}
    </div>`;
}

/** @param {{turn: import("../parts/conversation.js").Turn, retry?: () => void}} props */
function Said({ turn: { role, state, text, reasoning, error }, retry }) {
  return html`
    <article class=${`turn ${role}`}>
      <h2>${role === "user" ? "You" : "Answer"} <span class="note">${STATES[state]}</span></h2>
      ${reasoning && html`<details><summary>Reasoning</summary><p class="words">${reasoning}</p></details>`}
      ${text && html`<p class="words">${text}</p>`}
      ${state === "answering" && !text && html`<p class="note">waiting for the first token</p>`}
      <${Problem} error=${error} retry=${retry} />
    </article>`;
}

/** @param {{talk: Conversation}} props */
function Composer({ talk }) {
  const send = instead(() => talk.send());
  // While an input method composes a character, Enter belongs to it.
  const onKeyDown = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && send(event);
  return html`
    <form onSubmit=${send}>
      <${Area} label="Message" value=${talk.draft} note="Enter sends, Shift+Enter begins a new line." onKeyDown=${onKeyDown}
        onChange=${(draft) => talk.set({ draft })} />
      <p class="actions">
        <button type="submit" class="primary" disabled=${!!talk.running || !talk.draft.trim() || !talk.model}>Send</button>
        <button disabled=${!talk.running} onClick=${() => talk.stop()}>Stop</button>
        <button disabled=${!talk.turns.length} onClick=${() => talk.clear()}>New conversation</button>
      </p>
    </form>`;
}

function Steps({ id }) {
  const { run, spans, live, error, reload } = useRun(id);
  const tree = useMemo(() => spanTree(spans), [spans]);
  const [selected, select] = useState(null);
  return html`
    <p><a href=${url`#/runs/${id}` + (selected == null ? "" : `?span=${selected}`)}>Open run</a></p>
    <${Problem} error=${error} retry=${reload} />
    ${run && html`<${Timeline} run=${run} tree=${tree} live=${live} selected=${selected} onSelect=${select} />`}`;
}
