/** Configuration: the files, one of them in an editor with its findings next to it, and its older versions. */
import { api, url, useAction, useApi } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Editor } from "../parts/editor.js";
import { Loaded, Problem, Title } from "../parts/elements.js";
import { navigate } from "../routes.js";
import { countsOf, drafts, fileAddress, useFindings } from "./config/data.js";
import { Conflict, History, MorePowers } from "./config/dialogs.js";
import { Files } from "./config/files.js";

// The file is checked so long after the last key stroke.
const PAUSE = 500;

/** @param {{query: URLSearchParams, session: import("../session.js").Session}} props */
export default function Configuration({ query, session }) {
  const files = useApi("config/files");
  const findings = useFindings();
  const path = query.get("file");
  const whyNot = session.mode === "edit" ? "" : "Saving is off: start with --console edit";
  return html`
    <${Title}>Configuration<//>
    <${Problem} ...${findings.checking} />
    <div class="configuration">
      <aside>
        <${Loaded} from=${files}>${(all) => html`<${Files} files=${all.files} open=${path} counts=${findings.counts} />`}<//>
        <p class="actions"><button disabled=${findings.checking.busy} onClick=${findings.checking.run}>Check everything</button>
          <span class="note" role="status">${findings.said}</span></p>
      </aside>
      <div>${path ? html`<${File} key=${path} path=${path} line=${Number(query.get("line"))} whyNot=${whyNot} findings=${findings} />` : html`
        <p class="note">Choose a file. Each is checked while you write, with the other files as they are on the disk. ${whyNot}</p>
        <${Findings} findings=${findings.all} />`}</div>
    </div>`;
}

function File({ path, ...rest }) {
  const file = useApi(url`config/file?path=${path}`);
  return html`<${Loaded} from=${file}>${(data) => html`<${Bench} path=${path} data=${data} change=${file.change} ...${rest} />`}<//>`;
}

/**
 * @param {{path: string, data: {text: string, base: string, secrets: number, findings: object[]}, change: (data: object) => void,
 *   line: number, whyNot: string, findings: ReturnType<typeof useFindings>}} props `data`: the file on the disk
 */
function Bench({ path, data, change, line, whyNot, findings }) {
  const [text, setText] = useState(() => drafts.get(path)?.text ?? data.text);
  // Counts the texts that come from elsewhere than the keyboard.
  const [version, setVersion] = useState(0);
  const [at, setAt] = useState(null);
  const [dialog, setDialog] = useState(null);
  const [said, setSaid] = useState("");
  const timer = useRef(0);
  const newest = useRef("");
  newest.current = text;
  const changed = text !== data.text;
  const checking = useAction(async (value) => {
    const found = (await api("POST", "config/check", { path, text: value })).findings;
    // More was written in the meantime: its own check comes.
    if (newest.current !== value) return;
    findings.know(path, found);
    setSaid("checked");
  });
  const show = (value, done) => {
    newest.current = value;
    setText(value);
    setSaid(done);
  };
  const write = (value) => {
    show(value, "");
    if (value === data.text) drafts.delete(path);
    else drafts.set(path, { text: value, base: drafts.get(path)?.base ?? data.base });
    clearTimeout(timer.current);
    timer.current = setTimeout(checking.run, PAUSE, value);
  };
  const put = (value) => {
    write(value);
    setVersion((n) => n + 1);
  };
  const settle = (answer, done) => {
    change(answer);
    // What was written in the meantime stays, and is not saved.
    if (newest.current !== text) return void drafts.set(path, { text: newest.current, base: answer.base });
    drafts.delete(path);
    show(answer.text, done);
    setVersion((n) => n + 1);
  };
  const saving = useAction(async (confirm = "", base = drafts.get(path)?.base ?? data.base) => {
    clearTimeout(timer.current);
    try {
      settle(await api("PUT", "config/file", { path, text, base, confirm }), "saved");
    } catch (failure) {
      if (failure.status === 409 || failure.status === 428) return setDialog({ ...failure.body, base: failure.body.base ?? base, status: failure.status });
      if (failure.status === 422) setAt({ line: failure.body.line });
      throw failure;
    }
  });
  useEffect(() => findings.know(path, data.findings), [data]);
  useEffect(() => {
    // An unsaved text of an earlier visit has no findings yet.
    if (changed) checking.run(text);
    return () => clearTimeout(timer.current);
  }, []);
  useEffect(() => { if (line) setAt({ line }); }, [line]);
  // What a dialog does may have opened another.
  const rest = { ...dialog, path, mine: text, onClose: () => setDialog((now) => (now === dialog ? null : now)) };
  return html`<div class="head">
      <h2 class="mono">${path}</h2>
      <button onClick=${() => checking.run(text)}>Check</button>
      <button class="primary" disabled=${!changed || saving.busy || !!whyNot} onClick=${() => saving.run()}>Save</button>
      <button disabled=${!changed} onClick=${() => put(data.text)}>Revert</button>
      <button onClick=${() => setDialog({ status: 0 })}>History</button>
      <span role="status" aria-label="Editor" class="note">${[changed && "unsaved changes", checking.busy ? "checking" : said, whyNot].filter(Boolean).join(" · ")}</span>
    </div>
    <${Problem} ...${checking} />
    <${Problem} ...${saving} retry=${null} />
    <${Editor} label="Configuration file" text=${text} version=${version} language="json" onChange=${write} at=${at} findings=${findings.of(path)}
      assist=${(value, offset) => api("POST", "config/assist", { path, text: value, offset })} />
    ${data.secrets > 0 && html`<p class="note">Secrets are shown as <code>${"<kept secret 1>"}</code> and put back when the file is saved. Write over one to replace it.</p>`}
    <${Findings} findings=${findings.all} open=${path} goTo=${(number) => setAt({ line: number })} />
    ${dialog?.status === 0 && html`<${History} ...${rest} restore=${put} />`}
    ${dialog?.status === 428 && html`<${MorePowers} ...${rest} save=${() => saving.run(dialog.confirm, dialog.base)} />`}
    ${dialog?.status === 409 && html`<${Conflict} ...${rest} save=${() => saving.run("", dialog.base)}
      take=${() => { settle({ ...data, text: dialog.text, base: dialog.base }, ""); checking.run(dialog.text); }} />`}`;
}

/**
 * The findings of the open file first, then those of the others.
 * @param {{findings: object[], open?: string, goTo?: (line: number) => void}} props
 */
function Findings({ findings, open, goTo }) {
  const sorted = [...findings].sort((a, b) => (b.file === open) - (a.file === open));
  const go = (event, { file, line }) => {
    if (file !== open || !line) return;
    // The address may be that of this line already.
    event.preventDefault();
    navigate(fileAddress(file, line), { replace: true });
    goTo(line);
  };
  return html`<section class="all-findings"><h2>Findings</h2>
    ${!findings.length && html`<p class="note">${open ? "Nothing wrong was found in this file." : "Check everything lists what is wrong in any file."}</p>`}
    <ul aria-label="Findings">${sorted.map((one) => html`<li class=${one.severity}>
      <a class="mono" href=${fileAddress(one.file, one.line)} onClick=${(event) => go(event, one)}>${one.file}${one.line && `:${one.line}:${one.column ?? 1}`}</a> <span class="severity">${one.severity}</span> ${one.text}</li>`)}</ul>
    <p class="note">${countsOf(findings).words}</p>
  </section>`;
}
