/** The page Make a test: a run as a workflow test, which is run at once without an LLM. */
import { api, url, useAction, useApi } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Editor } from "../parts/editor.js";
import { Field, Loaded, Problem, Title } from "../parts/elements.js";
import { CopyButton, download } from "../parts/folded.js";
import { shortId } from "../parts/format.js";

// In the order of the page: the name in the API, the label, what it means.
const EXPECTATIONS = [
  ["route", "Route", "the same route is chosen"],
  ["order", "Order of nodes", "the same nodes run in the same order"],
  ["answer", "Answer", "the client gets the same answer"],
  ["prompts", "Prompts", "each call is sent the same prompt"],
  ["outputs", "Outputs", "each node has the same output"],
  ["endpoints", "Endpoints", "each call goes to the same endpoint"],
];
// A name is typed letter by letter.
const PAUSE_MS = 400;

/**
 * @typedef {{expectation: string, reason: string}} Unticked
 * @typedef {{path: string, file: string, writable: boolean, why: string, unticked: Unticked[]}} Made `file`: the whole text of the file
 * @typedef {{passed: boolean, seconds: number, lines: string[], unticked: Unticked[]}} Result
 */

/** @param {{path: string[], session: {role: string, mode: string}}} props the run */
export default function MakeTest({ path: [id], session }) {
  return html`<${Title}>Make a test<//>
    <${Loaded} from=${useApi(url`runs/${id}`)}>${({ run }) => html`<${Bench} run=${run} session=${session} />`}<//>`;
}

function Bench({ run, session }) {
  const name = (run.question ?? "").split("\n")[0].trim().slice(0, 60) || `Run ${shortId(run.id)}`;
  const [wish, setWish] = useState({ name, expect: ["route", "order", "answer"] });
  const [made, setMade] = useState(null);
  const [result, setResult] = useState(null);
  const [saved, setSaved] = useState("");
  const [running, setRunning] = useState(false);
  const asking = useAction(async (path, take) => {
    setRunning(path === "test/run");
    // What has failed by itself is not saved either.
    const without = path === "test/save" && result?.unticked.map(({ expectation }) => expectation);
    take(await api("POST", `${url`runs/${run.id}`}/${path}`, { ...wish, ...(without?.length && { without }) }));
  });
  useEffect(() => {
    setResult(null);
    setSaved("");
    const timer = setTimeout(() => asking.run("test", setMade), made ? PAUSE_MS : 0);
    return () => clearTimeout(timer);
  }, [wish]);
  const text = result?.file ?? made?.file ?? "";
  const idle = made && !asking.busy;
  const whyNot = session.role !== "operator" ? "A file can be saved only after signing in with the link of this machine."
    : session.mode !== "edit" ? "Saving is off: start with --console edit." : made && !made.writable ? made.why : "";
  return html`
    <p class="note">Everything that <a href=${url`#/runs/${run.id}`}>run ${shortId(run.id)}</a> got from outside is in the test, so it needs no LLM and no network.</p>
    <div class="fields wide"><${Field} label="Test name" value=${wish.name} onChange=${(typed) => setWish({ ...wish, name: typed })} /></div>
    <${Expectations} wish=${wish} unticked=${(result ?? made)?.unticked ?? []} change=${(expect) => setWish({ ...wish, expect })} />
    ${made && html`
      <p class="note">Belongs into <code>${made.path}</code></p>
      <${Editor} label="Test file" text=${text} readOnly=${true} language="json" />`}
    <${Problem} error=${asking.error} retry=${asking.retry} />
    <p class="actions">
      <button class="primary" disabled=${!idle} onClick=${() => { setSaved(""); asking.run("test/run", setResult); }}>Run the test</button>
      <${CopyButton} text=${text} />
      <button disabled=${!made} onClick=${() => download(made.path.split("/").at(-1), text)}>Download</button>
      <button disabled=${!idle || !!whyNot} onClick=${() => asking.run("test/save", ({ path }) => setSaved(path))}
        aria-describedby=${whyNot && "why-not"}>Save beside the workflow</button>
      <span class="note" id="why-not">${whyNot}</span>
    </p>
    <div role="status" aria-label="Test result" class="result">${asking.busy && running ? "running" : saved ? `saved in ${saved}` : result && said(result)}</div>`;
}

/** @param {Result} result */
function said({ passed, seconds, lines }) {
  return passed ? html`<span class="good">passed in ${seconds.toFixed(1)} s</span>` : html`<pre>${lines.join("\n")}</pre>`;
}

/** @param {{wish: {expect: string[]}, unticked: Unticked[], change: (expect: string[]) => void}} props */
function Expectations({ wish, unticked, change }) {
  const set = (name, on) => change(EXPECTATIONS.map(([one]) => one).filter((one) => one === name ? on : wish.expect.includes(one)));
  return html`
    <fieldset><legend>The test expects that</legend>
      ${EXPECTATIONS.map(([name, label, meaning]) => {
        // All of it, such as expect.answer; or a part, such as expect.prompts['Answer'].system, and the others stay.
        const reasons = unticked.filter(({ expectation }) => expectation === `expect.${name}`).map(({ reason }) => reason);
        const parts = unticked.filter(({ expectation }) => expectation.startsWith(`expect.${name}[`))
          .map(({ expectation, reason }) => `${expectation.replace("expect.", "")}, ${reason}`);
        return html`<div key=${name} class="line">
          <label><input type="checkbox" aria-label=${label} aria-describedby=${`about-${name}`} checked=${wish.expect.includes(name) && !reasons.length}
            onChange=${(event) => set(name, event.target.checked)} /> ${label}</label>
          <span class="note" id=${`about-${name}`}>${meaning}${(reasons.length || parts.length) > 0
            && html`; <strong>left out: ${[...reasons, ...parts].join("; ")}</strong>`}</span>
        </div>`;
      })}
    </fieldset>`;
}
