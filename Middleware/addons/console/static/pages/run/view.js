/** The body of a run's page: summary, explanation, timeline, details. A run file is shown by it, too. */
import { html, useEffect, useMemo, useRef, useState } from "../../html.js";
import { isUnfinished } from "../../parts/elements.js";
import { counted } from "../../parts/format.js";
import { around, spanTree } from "../../parts/spans.js";
import { Timeline } from "../../parts/timeline.js";
import { Details } from "./details.js";
import { Summary, Why } from "./summary.js";

/**
 * @param {{run: object, spans: import("../../parts/spans.js").SpanRow[], explanation: object | null, prefix?: object,
 *          live?: Map<number, object>, leftOut?: {spans: number, text_bytes: number} | null,
 *          session?: object | null, chosen?: number | null, onChoose?: (id: number) => void}} props
 * `session`: null for a run file, about which the server knows nothing; `chosen`: the span to begin with
 */
export function RunView({ run, spans, explanation, prefix = {}, live, leftOut, session = null, chosen = null, onChoose }) {
  const tree = useMemo(() => spanTree(spans), [spans]);
  const [picked, setPicked] = useState(chosen);
  const selected = tree.byId.has(picked) ? picked : firstLook(tree)?.id ?? null;
  const timeline = useRef(null);
  const details = useRef(null);
  useEffect(() => { if (chosen !== null) setPicked(chosen); }, [chosen]);
  const choose = (id) => {
    setPicked(id);
    onChoose?.(id);
  };
  // Where the details stand below the timeline, a tap on a row leads to them; keys do not, or one could not walk on.
  const tapped = ({ target }) => {
    const below = details.current.getBoundingClientRect().top >= timeline.current.getBoundingClientRect().bottom;
    if (below && target.closest("[role=treeitem]:not([aria-disabled])") && !target.closest(".twist")) {
      requestAnimationFrame(() => details.current.scrollIntoView());
    }
  };
  const back = () => {
    timeline.current.scrollIntoView();
    timeline.current.querySelector("[role=tree]").focus({ preventScroll: true });
  };
  const span = tree.byId.get(selected);
  return html`
    <${Summary} run=${run} tree=${tree} session=${session} />
    <${Why} run=${run} explanation=${explanation} />
    ${leftOut?.spans > 0 && html`<${Odd}>${counted(leftOut.spans, "more step")} of this run ${leftOut.spans === 1 ? "was" : "were"} not recorded: it had too many.<//>`}
    <div class="run-body">
      <div class="run-timeline" ref=${timeline} onClick=${tapped}>
        <h2>Timeline</h2>
        ${tree.all.length ? html`<${Timeline} run=${run} tree=${tree} selected=${selected} onSelect=${choose} live=${live} />`
          : html`<p class="note">${isUnfinished(run.status) ? "Nothing has begun yet." : "The run ended before anything began."}</p>`}
      </div>
      <div class="run-details" ref=${details}>
        ${span && html`<button class="quiet back" onClick=${back}>Back to timeline</button>
          <${Details} key=${span.id} run=${run} span=${span} prefix=${prefix} live=${live?.get(span.id)} session=${session} />`}
      </div>
    </div>`;
}

/** What one wants to see first: what failed, what is at work, else the call that made the answer. */
function firstLook({ all }) {
  const calls = all.filter((span) => span.kind === "llm");
  const isFailure = ({ status, kind }) => status === "error" && kind !== "attempt";
  const answers = (call) => {
    const node = around(call, "node")?.attributes;
    return node?.responder && !node.after_answer;
  };
  return all.findLast((span) => isFailure(span) && span.kind !== "note" && !span.children.some(isFailure))
    ?? calls.findLast((span) => span.status === "running") ?? calls.findLast(answers) ?? calls.at(-1)
    ?? all.find((span) => span.kind === "node") ?? all[0];
}
