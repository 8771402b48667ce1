/** Settings: what is kept, for how long, who is signed in, what was changed. */
import { api, useApi } from "../api.js";
import { html, useState } from "../html.js";
import { Loading, Problem } from "../parts/alert.js";
import { Confirm } from "../parts/dialog.js";
import { Field, Switch } from "../parts/fields.js";
import { Moment, bytes, count, counted } from "../parts/format.js";
import { shortcutsOn, switchShortcuts } from "../parts/keyboard.js";
import { Title } from "../parts/title.js";

/** @param {{session: import("../session.js").Session, signOut: () => void}} props */
export default function Settings({ session, signOut }) {
  const settings = useApi("settings");
  const sessions = useApi("sessions");
  const [problem, setProblem] = useState(null);
  const [asking, setAsking] = useState(false);
  const [shortcuts, setShortcuts] = useState(shortcutsOn());
  const { data } = settings;
  const save = async (changes) => {
    try {
      settings.change(await api("PUT", "settings", changes));
      setProblem(null);
    } catch (error) {
      setProblem(error);
      settings.reload();
    }
  };
  return html`
    <div class="head"><${Title}>Settings<//></div>
    <${Problem} error=${settings.error} retry=${settings.reload} />
    <${Problem} error=${problem} onClose=${() => setProblem(null)} />
    ${!data && settings.loading && html`<${Loading} />`}
    <div class="settings">
      ${data && html`<${Recording} data=${data} save=${save} remove=${() => setAsking(true)} />`}
      <section><h2>This browser</h2>
        <${Switch} label="Keyboard shortcuts" checked=${shortcuts} note="Single keys such as j and /. The key ? lists them."
          onChange=${(on) => { switchShortcuts(on); setShortcuts(on); }} />
        <p class="actions"><button type="button" onClick=${signOut}>Sign out</button></p>
      </section>
      <${Browsers} sessions=${sessions} />
      ${data && html`<${Changes} changes=${data.changes ?? []} />`}
      <p class="quiet-text">WilmerAI ${data?.version ?? session.version}</p>
    </div>
    ${asking && html`<${Confirm} title="Delete all runs?" confirm="Delete all runs" onClose=${() => setAsking(false)}
      action=${async () => { await api("DELETE", "runs"); settings.reload(); }}>
      <p>All ${data?.used?.runs ? counted(data.used.runs, "run") : "runs"} on the disk and those in memory are deleted, pinned ones, too.
        Memories of discussions stay. There is no way back.</p><//>`}`;
}

function Recording({ data, save, remove }) {
  const flag = data.decided?.record;
  return html`<section><h2>What is kept</h2>
    <${Switch} label="Keep texts on disk" checked=${data.record === "texts"} disabled=${Boolean(flag)}
      onChange=${(on) => save({ record: on ? "texts" : "facts" })}
      note=${flag ? `Decided by ${flag} on the server's command line.`
        : "Prompts and answers, for as long as is said below. Without it, only facts are kept: times, counts, names. The newest runs have their texts in memory either way."} />
    <p class="fields">
      <${Limit} label="Days" name="days" value=${data.days} save=${save} max=${3650} />
      <${Limit} label="Megabytes" name="megabytes" value=${data.megabytes} save=${save} max=${1_000_000} />
    </p>
    <p class="note">Whatever is reached first; the oldest runs go, pinned ones stay.${data.runs ? ` Never more than ${counted(data.runs, "run")}.` : ""}</p>
    <dl class="facts">
      <div><dt>Space used</dt><dd class="num">${bytes(data.used?.bytes)}, ${data.used?.runs == null ? "" : counted(data.used.runs, "run")}${
        data.used?.oldest ? html`, the oldest of <${Moment} us=${data.used.oldest} />` : ""}</dd></div>
      <div><dt>Dropped</dt><dd class="num">${dropped(data.dropped)}</dd></div>
    </dl>
    <p class="actions"><button type="button" class="danger" onClick=${remove}>Delete all runs</button></p>
  </section>`;
}

function dropped({ runs = 0, texts = 0 } = {}) {
  if (!runs && !texts) return "nothing since the start";
  return `${counted(runs, "run")}, and the texts of ${count(texts)} more: the disk was too slow or full`;
}

/** A number is saved when the field is left or Enter is pressed, not with each key. */
function Limit({ label, name, value, max, save }) {
  const [text, setText] = useState(null);
  const done = () => {
    const number = Number(text);
    if (text !== null && number !== value && Number.isInteger(number) && number >= 1 && number <= max) save({ [name]: number });
    setText(null);
  };
  return html`<span onFocusout=${done} onKeyDown=${(event) => event.key === "Enter" && done()}>
    <${Field} label=${label} type="number" min=${1} max=${max} step=${1} value=${text ?? value} onChange=${setText} /></span>`;
}

function Browsers({ sessions }) {
  const [problem, setProblem] = useState(null);
  const end = async (id) => {
    try {
      await api("DELETE", `sessions/${encodeURIComponent(id)}`);
      setProblem(null);
      sessions.reload();
    } catch (error) {
      setProblem(error);
    }
  };
  const rows = sessions.data?.sessions ?? [];
  return html`<section><h2>Signed-in browsers</h2>
    <${Problem} error=${sessions.error} retry=${sessions.reload} />
    <${Problem} error=${problem} onClose=${() => setProblem(null)} />
    <table class="cards" aria-label="Signed-in browsers" role="table">
      <thead role="rowgroup"><tr role="row">${["Browser", "Signed in", "Last used"].map((name) => html`<th role="columnheader" key=${name}>${name}</th>`)}<td role="cell"></td></tr></thead>
      <tbody role="rowgroup">${rows.map((one) => html`<tr role="row" key=${one.id}>
        <td role="cell" data-label="Browser">${one.label || "unknown"}${one.current ? " (this one)" : ""}</td>
        <td role="cell" data-label="Signed in"><${Moment} us=${one.created} /></td>
        <td role="cell" data-label="Last used"><${Moment} us=${one.used} /></td>
        <td role="cell" class="end"><button type="button" onClick=${() => end(one.id)}>End session</button></td></tr>`)}</tbody>
    </table></section>`;
}

function Changes({ changes }) {
  return html`<section><h2>Changes</h2>
    ${changes.length === 0 && html`<p class="quiet-text">Configuration files that are saved from the console are listed here. Saving is on if the
      server was started with <code>--console edit</code>.</p>`}
    ${changes.length > 0 && html`<table class="cards" aria-label="Changes" role="table">
      <thead role="rowgroup"><tr role="row">${["When", "File", "What"].map((name) => html`<th role="columnheader" key=${name}>${name}</th>`)}</tr></thead>
      <tbody role="rowgroup">${changes.map((one, index) => html`<tr role="row" key=${index}>
        <td role="cell" data-label="When"><${Moment} us=${one.at} /></td><td role="cell" data-label="File" class="mono">${one.path}</td>
        <td role="cell" data-label="What">${one.what}</td></tr>`)}</tbody></table>`}</section>`;
}
