/** The page Make a test: a run as a workflow test, which is run at once without an LLM. */
import { api, useApi } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Loading, Problem } from "../parts/alert.js";
import { Editor } from "../parts/editor.js";
import { Field } from "../parts/fields.js";
import { CopyButton, download } from "../parts/folded.js";
import { shortId } from "../parts/format.js";
import { Title } from "../parts/title.js";

// In the order of the page: the name in the API, the label, what it means.
const EXPECTATIONS = [
  ["route", "Route", "the same route is chosen"],
  ["order", "Order of nodes", "the same nodes run in the same order"],
  ["answer", "Answer", "the client gets the same answer"],
  ["prompts", "Prompts", "each call is sent the same prompt"],
  ["outputs", "Outputs", "each node has the same output"],
  ["endpoints", "Endpoints", "each call goes to the same endpoint"],
];
const AT_FIRST = ["route", "order", "answer"];
// A name is typed letter by letter.
const PAUSE = 400;

/**
 * @typedef {{expectation: string, reason: string}} Unticked
 * @typedef {{path: string, file: string, writable: boolean, why: string, unticked: Unticked[]}} Made `file`: the whole text of the file
 * @typedef {{passed: boolean, seconds: number, lines: string[], unticked: Unticked[]}} Result
 */

/** @param {{path: string[], session: {role: string, mode: string}}} props the run */
export default function MakeTest({ path: [id], session }) {
  const { data, error, reload } = useApi(`runs/${id}`);
  return html`
    <${Title}>Make a test<//>
    <${Problem} error=${error} retry=${reload} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<${Bench} run=${data.run} session=${session} />`}`;
}

/** @param {{run: object, session: object}} props */
function Bench({ run, session }) {
  const [wish, setWish] = useState({ name: named(run), expect: AT_FIRST });
  const [made, setMade] = useState(/** @type {Made | null} */ (null));
  const [result, setResult] = useState(/** @type {Result | null} */ (null));
  const [error, setError] = useState(/** @type {{problem: Error, retry: () => void} | null} */ (null));
  const [busy, setBusy] = useState("");
  const [saved, setSaved] = useState("");
  const call = async (what, path, take) => {
    setBusy(what);
    setError(null);
    try {
      take(await api("POST", `runs/${run.id}/${path}`, wish));
    } catch (problem) {
      setError({ problem, retry: () => call(what, path, take) });
    }
    setBusy("");
  };
  const make = () => call("make", "test", setMade);
  useEffect(() => {
    setResult(null);
    setSaved("");
    const timer = setTimeout(make, made ? PAUSE : 0);
    return () => clearTimeout(timer);
  }, [wish]);
  const text = made?.file ?? "";
  const unticked = [...made?.unticked ?? [], ...result?.unticked ?? []];
  return html`
    <p class="note">Everything that <a href=${`#/runs/${run.id}`}>run ${shortId(run.id)}</a> got from outside is in the test, so it needs no LLM and no network.</p>
    <div class="fields wide"><${Field} label="Test name" value=${wish.name} onChange=${(name) => setWish({ ...wish, name })} /></div>
    <${Expectations} wish=${wish} unticked=${unticked} change=${(expect) => setWish({ ...wish, expect })} />
    ${made && html`
      <p class="note">Belongs into <code>${made.path}</code></p>
      <${Editor} label="Test file" text=${text} readOnly=${true} language="json" />`}
    <${Problem} error=${error?.problem} retry=${error?.retry} />
    <p class="actions">
      <button type="button" class="primary" disabled=${!made || !!busy} onClick=${() => call("run", "test/run", setResult)}>Run the test</button>
      <${CopyButton} text=${text} />
      <button type="button" disabled=${!made} onClick=${() => download(filename(made.path), text)}>Download</button>
      <${Save} session=${session} made=${made} busy=${busy} save=${() => call("save", "test/save", ({ path }) => setSaved(path))} />
    </p>
    <div role="status" aria-label="Test result" class="result">${busy === "run" ? "running" : saved ? `saved in ${saved}` : result && said(result)}</div>`;
}

/** @param {object} run */
const named = (run) => (run.question ?? "").split("\n")[0].trim().slice(0, 60) || `Run ${shortId(run.id)}`;

/** @param {string} path */
const filename = (path) => path.split("/").at(-1);

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
        const reasons = unticked.filter(({ expectation }) => expectation === name).map(({ reason }) => reason);
        return html`<div key=${name} class="line">
          <label><input type="checkbox" aria-label=${label} aria-describedby=${`about-${name}`} checked=${wish.expect.includes(name) && !reasons.length}
            onChange=${(event) => set(name, event.target.checked)} /> ${label}</label>
          <span class="note" id=${`about-${name}`}>${meaning}${reasons.length > 0 && html`; <strong>left out: ${reasons.join("; ")}</strong>`}</span>
        </div>`;
      })}
    </fieldset>`;
}

/** @param {{session: {role: string, mode: string}, made: Made | null, busy: string, save: () => void}} props */
function Save({ session, made, busy, save }) {
  const why = session.role !== "operator" ? "A file can be saved only after signing in with the link of this machine."
    : session.mode !== "edit" ? "Saving is off: start with --console edit." : made && !made.writable ? made.why : "";
  return html`
    <button type="button" disabled=${!made || !!busy || !!why} onClick=${save} aria-describedby=${why ? "why-not" : undefined}>Save beside the workflow</button>
    ${why && html`<span class="note" id="why-not">${why}</span>`}`;
}
