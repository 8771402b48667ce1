/** One run: what happened, and why. */
import { html, useState } from "../html.js";
import { Empty, Loading, Problem } from "../parts/alert.js";
import { shortId } from "../parts/format.js";
import { useRun } from "../parts/run_data.js";
import { State } from "../parts/state.js";
import { Title } from "../parts/title.js";
import { RunActions } from "./run/actions.js";
import { RunView } from "./run/view.js";

const REPEATS = { replay: "Replay of", again: "Another try of" };

/** @param {{path: string[], query: URLSearchParams, session: import("../session.js").Session}} props */
export default function Run({ path: [id], query, session }) {
  const data = useRun(id);
  const [problem, setProblem] = useState(null);
  const { run } = data;
  const wanted = Number(query.get("span")) || null;
  // The chosen span stands in the address, for Back and for a link, without being a step of its own.
  const onChoose = (span) => history.replaceState(history.state, "", `#/runs/${encodeURIComponent(id)}?span=${span}`);
  return html`
    <p class="crumbs"><a href="#/runs">Runs</a></p>
    <div class="head">
      <${Title} text=${`Run ${shortId(id)}`}>Run ${shortId(id)}<//>
      ${run && html`<${State} status=${run.status} />`}
      ${run?.pinned && html`<span class="pin">⚑ pinned</span>`}
      ${run?.origin && html`<a href=${`#/runs/${encodeURIComponent(run.origin.run)}${run.origin.span ? `?span=${run.origin.span}` : ""}`}>${
        REPEATS[run.kind] ?? "Made from"} ${shortId(run.origin.run)}</a>`}
      <span class="push"></span>
      ${run && !data.gone && html`<${RunActions} run=${run} reload=${data.reload} onProblem=${setProblem} />`}
    </div>
    <${Problem} error=${problem} onClose=${() => setProblem(null)} />
    ${data.error && data.error.status !== 404 && html`<${Problem} error=${data.error} retry=${data.reload} />`}
    ${data.error?.status === 404 && html`<${Empty} title="This run is not here">
      <p>${data.error.message}</p><p>Runs are deleted after some days, as <a href="#/settings">Settings</a> say, unless they are pinned.</p><//>`}
    ${data.gone && html`<p class="odd" role="status">This run has been deleted; what was loaded is still shown.</p>`}
    ${!run && data.loading && html`<${Loading} />`}
    ${run && html`<${RunView} ...${data} session=${session} chosen=${wanted} onChoose=${onChoose} />`}`;
}
