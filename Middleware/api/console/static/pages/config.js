/** Configuration: the files, one of them in an editor with its findings beside it, and its older versions. */
import { api, useApi } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Editor } from "../parts/editor.js";
import { Loading, Problem, Title } from "../parts/elements.js";
import { navigate } from "../routes.js";
import { Conflict, History, MorePowers } from "./config/dialogs.js";
import { countsOf, drafts, fileAddress, useEveryFinding } from "./config/data.js";
import { Files } from "./config/files.js";

// The file is checked so long after the last key stroke.
const PAUSE = 500;

/** @param {{query: URLSearchParams, session: import("../session.js").Session}} props */
export default function Configuration({ query, session }) {
  const files = useApi("config/files");
  const every = useEveryFinding();
  const path = query.get("file");
  return html`
    <${Title}>Configuration<//>
    <${Problem} error=${files.error} retry=${files.reload} />
    <${Problem} error=${every.error} retry=${every.check} onClose=${every.close} />
    ${!files.data && !files.error && html`<${Loading} />`}
    <div class="configuration">
      <aside>
        ${files.data && html`<${Files} files=${files.data.files} open=${path} counts=${every.counts} />`}
        <p class="actions"><button type="button" disabled=${every.busy} onClick=${every.check}>Check everything</button>
          <span class="quiet-text" role="status">${every.said}</span></p>
      </aside>
      ${path ? html`<${OneFile} key=${path} path=${path} line=${Number(query.get("line")) || null} session=${session} every=${every} />`
        : html`<div><p class="note">Choose a file. Each is checked while you write, with the other files as they are on the disk.
            ${session.mode === "edit" ? "" : " Saving is off: start with --console edit."}</p>
          <${Findings} findings=${every.findings} /></div>`}
    </div>`;
}

/** @param {{path: string, line: number | null, session: object, every: ReturnType<typeof useEveryFinding>}} props */
function OneFile({ path, line, session, every }) {
  const { data, error, reload, change } = useApi(`config/file?path=${encodeURIComponent(path)}`);
  const [text, setText] = useState(/** @type {string | null} */ (drafts.get(path)?.text ?? null));
  // Counts the texts that come from elsewhere than the keyboard.
  const [version, setVersion] = useState(0);
  const [at, setAt] = useState(null);
  const [dialog, setDialog] = useState(/** @type {{kind: string, problem?: Error} | null} */ (null));
  const [problem, setProblem] = useState(null);
  const [said, setSaid] = useState("");
  const timer = useRef(0);
  const newest = useRef("");
  const shown = newest.current = text ?? data?.text ?? "";
  const changed = !!data && shown !== data.text;
  useEffect(() => { if (line && data) setAt({ line }); }, [line, !!data]);
  useEffect(() => { if (data) every.know(path, data.findings); }, [data]);
  const check = async (value) => {
    setSaid("checking");
    try {
      const { findings } = await api("POST", "config/check", { path, text: value });
      // More was written meanwhile: its own check comes.
      if (newest.current !== value) return;
      every.know(path, findings);
      setSaid("checked");
    } catch (failure) {
      setSaid("");
      setProblem(failure);
    }
  };
  const write = (value) => {
    newest.current = value;
    setText(value);
    if (value === data.text) drafts.delete(path);
    else drafts.set(path, { text: value, base: drafts.get(path)?.base ?? data.base });
    clearTimeout(timer.current);
    timer.current = setTimeout(() => check(value), PAUSE);
    setSaid("");
  };
  const put = (value) => {
    write(value);
    setVersion((n) => n + 1);
  };
  useEffect(() => {
    // An unsaved text of an earlier visit has no findings yet.
    if (data && drafts.has(path)) check(drafts.get(path).text);
    return () => clearTimeout(timer.current);
  }, [!!data]);
  const settle = (answer, done) => {
    change(answer);
    setDialog(null);
    // What was written meanwhile stays, and is not saved.
    if (newest.current !== shown) return void drafts.set(path, { text: newest.current, base: answer.base });
    drafts.delete(path);
    setText(answer.text);
    setVersion((n) => n + 1);
    setSaid(done);
  };
  const save = async (confirm = "", base = drafts.get(path)?.base ?? data.base) => {
    setProblem(null);
    clearTimeout(timer.current);
    try {
      settle(await api("PUT", "config/file", { path, text: shown, base, confirm }), "saved");
    } catch (failure) {
      const kind = { 409: "conflict", 428: "powers" }[failure.status];
      setDialog(kind ? { kind, problem: failure } : null);
      if (!kind) setProblem(failure);
      if (failure.status === 422) setAt({ line: failure.body.line });
    }
  };
  if (error) return html`<div><${Problem} error=${error} retry=${reload} /></div>`;
  if (!data) return html`<div><${Loading} /></div>`;
  const why = session.mode === "edit" ? "" : "Saving is off: start with --console edit";
  return html`<div class="one-file">
    <div class="head">
      <h2 class="mono">${path}</h2>
      <button type="button" onClick=${() => check(shown)}>Check</button>
      <button type="button" class="primary" disabled=${!changed || !!why} onClick=${() => save()}>Save</button>
      <button type="button" disabled=${!changed} onClick=${() => put(data.text)}>Revert</button>
      <button type="button" onClick=${() => setDialog({ kind: "history" })}>History</button>
      <span role="status" aria-label="Editor" class="quiet-text">${[changed ? "unsaved changes" : "", said, why].filter(Boolean).join(" · ")}</span>
    </div>
    <${Problem} error=${problem} onClose=${() => setProblem(null)} />
    <${Editor} label="Configuration file" text=${shown} version=${version} language="json" onChange=${write} at=${at} findings=${every.of(path)}
      assist=${(value, offset) => api("POST", "config/assist", { path, text: value, offset })} />
    ${data.secrets > 0 && html`<p class="note">Secrets are shown as <code>${"<kept secret 1>"}</code> and put back when the file is saved. Write over one to replace it.</p>`}
    <${Findings} findings=${every.findings} open=${path} goTo=${(number) => setAt({ line: number })} />
    ${dialog?.kind === "history" && html`<${History} path=${path} shown=${shown} restore=${(old) => { put(old); setDialog(null); }} onClose=${() => setDialog(null)} />`}
    ${dialog?.kind === "powers" && html`<${MorePowers} problem=${dialog.problem} save=${() => save(dialog.problem.body.confirm)} onClose=${() => setDialog(null)} />`}
    ${dialog?.kind === "conflict" && html`<${Conflict} problem=${dialog.problem} mine=${shown} onClose=${() => setDialog(null)}
      take=${() => { const { text: theirs, base } = dialog.problem.body; settle({ ...data, text: theirs, base }, ""); check(theirs); }} save=${() => save("", dialog.problem.body.base)} />`}
  </div>`;
}

/**
 * The findings of the open file first, then those of the others.
 * @param {{findings: object[], open?: string, goTo?: (line: number) => void}} props
 */
function Findings({ findings, open, goTo }) {
  const sorted = [...findings].sort((a, b) => Number(b.file === open) - Number(a.file === open));
  const go = (event, one) => {
    if (one.file !== open || !one.line) return;
    // The address may be that of this line already.
    event.preventDefault();
    navigate(fileAddress(one.file, one.line), { replace: true });
    goTo(one.line);
  };
  return html`<section class="all-findings"><h2>Findings</h2>
    ${!findings.length && html`<p class="note">${open ? "Nothing wrong was found in this file." : "Check everything lists what is wrong in any file."}</p>`}
    <ul aria-label="Findings">${sorted.map((one, n) => html`<li key=${n} class=${one.severity}>
      <a class="mono" href=${fileAddress(one.file, one.line)} onClick=${(event) => go(event, one)}>${one.file}${one.line ? `:${one.line}:${one.column ?? 1}` : ""}</a> <span class="severity">${one.severity}</span> ${one.text}</li>`)}</ul>
    ${findings.length > 0 && html`<p class="quiet-text">${countsOf(findings).words}</p>`}
  </section>`;
}
