/** The body of a run's page: summary, explanation, timeline, details. A run file is shown by it, too. */
import { html, useEffect, useMemo, useRef, useState } from "../../html.js";
import { counted } from "../../parts/format.js";
import { isUnfinished } from "../../parts/run_data.js";
import { spanTree } from "../../parts/spans.js";
import { Timeline } from "../../parts/timeline.js";
import { hasPage } from "../../routes.js";
import { may } from "../../session.js";
import { Details } from "./details.js";
import { Summary } from "./summary.js";
import { Why } from "./why.js";

/**
 * @param {{run: object, spans: import("../../parts/spans.js").SpanRow[], explanation: object | null, prefix?: object,
 *          live?: Map<number, object>, leftOut?: {spans: number, text_bytes: number} | null, local?: boolean,
 *          session?: object | null, chosen?: number | null, onChoose?: (id: number) => void}} props
 * `local`: a run file; no call of the API is made. `chosen`: the span to begin with
 */
export function RunView({ run, spans, explanation, prefix = {}, live, leftOut, local = false, session = null, chosen = null, onChoose }) {
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
  const tapped = (event) => {
    const below = details.current && details.current.getBoundingClientRect().top >= timeline.current.getBoundingClientRect().bottom;
    if (below && event.target.closest("[role=treeitem]:not([aria-disabled])") && !event.target.closest(".twist")) {
      requestAnimationFrame(() => details.current.scrollIntoView());
    }
  };
  const back = () => {
    timeline.current.scrollIntoView();
    timeline.current.querySelector("[role=tree]").focus({ preventScroll: true });
  };
  const span = tree.byId.get(selected);
  return html`
    <${Summary} run=${run} tree=${tree} operator=${session?.role === "operator" && !local}
      workflows=${!local && session !== null && may(session, "all") && hasPage("workflows")} />
    <${Why} run=${run} explanation=${explanation} />
    ${leftOut?.spans > 0 && html`<p class="odd"><span class="shape" aria-hidden="true">!</span> ${
      counted(leftOut.spans, "more step")} of this run ${leftOut.spans === 1 ? "was" : "were"} not recorded: it had too many.</p>`}
    <div class="run-body">
      <div class="run-timeline" ref=${timeline} onClick=${tapped}>
        <h2>Timeline</h2>
        ${tree.all.length ? html`<${Timeline} run=${run} spans=${spans} tree=${tree} selected=${selected} onSelect=${choose} live=${live} />`
          : html`<p class="quiet-text">${isUnfinished(run.status) ? "Nothing has begun yet." : "The run ended before anything began."}</p>`}
      </div>
      <div class="run-details" ref=${details}>
        ${span && html`<button type="button" class="quiet back" onClick=${back}>Back to timeline</button>
          <${Details} key=${span.id} run=${run} span=${span} prefix=${prefix} live=${live?.get(span.id)} local=${local} session=${session} />`}
      </div>
    </div>`;
}

/** What one wants to see first: what failed, what is at work, else the call that made the answer. */
function firstLook(tree) {
  const calls = tree.all.filter((span) => span.kind === "llm");
  const failed = tree.all.findLast((span) => span.status === "error" && span.kind !== "attempt" && span.kind !== "note"
    && !span.children.some((child) => child.status === "error" && child.kind !== "attempt"));
  const answer = calls.findLast((span) => isResponder(span));
  return failed ?? calls.findLast((span) => span.status === "running") ?? answer ?? calls.at(-1)
    ?? tree.all.find((span) => span.kind === "node") ?? tree.all[0];
}

function isResponder(call) {
  for (let one = call; one; one = one.parent) if (one.kind === "node") return Boolean(one.attributes.responder) && !one.attributes.after_answer;
  return false;
}
