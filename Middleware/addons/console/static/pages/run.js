/** One run: what happened, and why. */
import { url } from "../api.js";
import { html } from "../html.js";
import { Empty, Loading, Problem, State, Title } from "../parts/elements.js";
import { shortId } from "../parts/format.js";
import { useRun } from "../parts/run_data.js";
import { RunActions } from "./run/actions.js";
import { RunView } from "./run/view.js";

const REPEATS = { replay: "Replay of", again: "Another try of" };

export default function Run({ path: [id], query, session }) {
  const data = useRun(id);
  const { run, error, gone } = data;
  // The chosen span stands in the address, for Back and for a link, without being a step of its own.
  const onChoose = (span) => history.replaceState(history.state, "", url`#/runs/${id}?span=${span}`);
  const origin = run?.origin;
  return html`
    <p class="crumbs"><a href="#/runs">Runs</a></p>
    <div class="head">
      <${Title}>Run ${shortId(id)}<//>
      ${run && html`<${State} status=${run.status} />`}
      ${run?.pinned && html`<span class="pin">⚑ pinned</span>`}
      ${origin && html`<a href=${url`#/runs/${origin.run}` + (origin.span ? `?span=${origin.span}` : "")}>${REPEATS[run.kind] ?? "Made from"} ${shortId(origin.run)}</a>`}
      <span class="push"></span>
      ${run && !gone && html`<${RunActions} run=${run} reload=${data.reload} />`}
    </div>
    ${error?.status === 404 ? html`<${Empty} title="This run is not here">
      <p>${error.message}</p><p>Runs are deleted after some days, as <a href="#/settings">Settings</a> say, unless they are pinned.</p><//>`
      : html`<${Problem} error=${error} retry=${data.reload} />`}
    ${gone && html`<p class="odd" role="status">This run has been deleted; what was loaded is still shown.</p>`}
    ${run ? html`<${RunView} ...${data} session=${session} chosen=${Number(query.get("span")) || null} onChoose=${onChoose} />`
      : data.loading && html`<${Loading} />`}`;
}
