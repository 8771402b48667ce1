/** A run from a file. The browser has read it, and the server knows nothing of it. */
import { html, useMemo } from "../html.js";
import { Empty, Guarded, Problem, State, Title } from "../parts/elements.js";
import { shortId } from "../parts/format.js";
import { OpenRunFile, openedRun } from "../parts/run_file.js";
import { RunView } from "./run/view.js";

export default function OpenedFile({ query }) {
  const { file, name, problem } = openedRun();
  // Anyone may have written the file.
  const flawed = html`<${NotShown} problem=${new Error(`${name} is not a run file that this console can show: its run has parts of another kind than expected.`)} />`;
  if (file) return html`<${Guarded} key=${query.get("opened")} instead=${flawed}><${Shown} file=${file} name=${name} /><//>`;
  return html`<${NotShown} problem=${problem} />`;
}

/** @param {{problem: Error | null}} props */
function NotShown({ problem }) {
  return html`
    <${Title}>Run file<//>
    <${Problem} error=${problem} />
    ${!problem && html`<${Empty} title="No file is open"><p>A run file is what Export of a run makes. It can also be dropped on any page.</p><//>`}
    <p class="actions"><${OpenRunFile} /></p>`;
}

/** @param {{file: import("../parts/run_file.js").RunFile, name: string}} props */
function Shown({ file: { run, spans, texts, explanation }, name }) {
  // A file keeps long texts next to the spans, as the server does.
  const whole = useMemo(() => spans.map((row) => [...row.slice(0, 8), { ...row[8], ...texts?.[row[0]] }]), [spans]);
  return html`
    <div class="head"><${Title}>Run ${shortId(run.id)}<//><${State} status=${run.status} /><span class="push"><${OpenRunFile} /></span></div>
    <p class="note">From the file <code>${name}</code>. It was read in this browser and not sent to the server.</p>
    <${RunView} run=${run} spans=${whole} explanation=${explanation ?? null} />`;
}
