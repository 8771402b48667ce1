/** Settings: what is kept, for how long, who is signed in, what was changed. */
import { api, url, useAction, useApi } from "../api.js";
import { html, useState } from "../html.js";
import { Confirm, Facts, Field, Loaded, Problem, Switch, Table, Title } from "../parts/elements.js";
import { Moment, bytes, count, counted } from "../parts/format.js";
import { shortcutsOn, switchShortcuts } from "../parts/keyboard.js";

export default function Settings({ session, signOut }) {
  const settings = useApi("settings");
  const [asking, setAsking] = useState(false);
  const [shortcuts, setShortcuts] = useState(shortcutsOn());
  const { data } = settings;
  const saving = useAction(async (changes) => {
    // What was clicked is shown at once; if it could not be saved, what the server has.
    settings.change((old) => ({ ...old, ...changes }));
    await api("PUT", "settings", changes).then(settings.change, (error) => {
      settings.reload();
      throw error;
    });
  });
  return html`
    <div class="head"><${Title}>Settings<//></div>
    <${Problem} ...${saving} />
    <div class="settings">
      <${Loaded} from=${settings}>${() => html`<${Recording} data=${data} save=${saving.run} remove=${() => setAsking(true)} />`}<//>
      <section><h2>This browser</h2>
        <${Switch} label="Keyboard shortcuts" checked=${shortcuts} note="Single keys such as j and /. The key ? lists them."
          onChange=${(on) => { switchShortcuts(on); setShortcuts(on); }} />
        <p class="actions"><button onClick=${signOut}>Sign out</button></p>
      </section>
      <${Browsers} />
      ${data && html`<${Changes} changes=${data.changes ?? []} />`}
      <p class="note">WilmerAI ${data?.version ?? session.version}</p>
    </div>
    ${asking && html`<${Confirm} title="Delete all runs?" confirm="Delete all runs" onClose=${() => setAsking(false)}
      action=${() => api("DELETE", "runs").then(settings.reload)}>
      <p>All ${data.used?.runs ? counted(data.used.runs, "run") : "runs"} on the disk and those in memory are deleted, pinned ones, too.
        Memories of discussions stay. There is no way back.</p><//>`}`;
}

function Recording({ data, save, remove }) {
  const { used, runs, dropped, decided } = data;
  const flag = decided?.record;
  const limit = (label, name, max) => html`<${Limit} label=${label} value=${data[name]} max=${max} save=${(value) => save({ [name]: value })} />`;
  return html`<section><h2>What is kept</h2>
    <${Switch} label="Keep texts on disk" checked=${data.record === "texts"} disabled=${Boolean(flag)}
      onChange=${(on) => save({ record: on ? "texts" : "facts" })}
      note=${flag ? `Decided by ${flag} on the server's command line.`
        : "Prompts and answers, for as long as is said below. Without it, only facts are kept: times, counts, names. The newest runs have their texts in memory either way."} />
    <p class="fields">${limit("Days", "days", 3650)}${limit("Megabytes", "megabytes", 1_000_000)}</p>
    <p class="note">Whatever is reached first; the oldest runs go, pinned ones stay.${runs ? ` Never more than ${counted(runs, "run")}.` : ""}</p>
    <${Facts} rows=${[
      ["Space used", html`${bytes(used?.bytes)}${used?.runs != null && `, ${counted(used.runs, "run")}`}${used?.oldest
        && html`, the oldest of <${Moment} us=${used.oldest} />`}`],
      ["Dropped", dropped?.runs || dropped?.texts
        ? `${counted(dropped.runs ?? 0, "run")}, and the texts of ${count(dropped.texts ?? 0)} more: the disk was too slow or full` : "nothing since the start"],
    ]} />
    <p class="actions"><button class="danger" onClick=${remove}>Delete all runs</button></p>
  </section>`;
}

/** A number is saved when the field is left or Enter is pressed, not with each key. */
function Limit({ label, value, max, save }) {
  const [text, setText] = useState(null);
  const done = () => {
    const number = Number(text);
    if (text !== null && number !== value && Number.isInteger(number) && number >= 1 && number <= max) save(number);
    setText(null);
  };
  return html`<span onFocusout=${done} onKeyDown=${(event) => event.key === "Enter" && done()}>
    <${Field} label=${label} type="number" min="1" max=${max} value=${text ?? value} onChange=${setText} /></span>`;
}

function Browsers() {
  const sessions = useApi("sessions");
  const ending = useAction((id) => api("DELETE", url`sessions/${id}`).then(sessions.reload));
  return html`<section><h2>Signed-in browsers</h2>
    <${Problem} ...${ending} />
    <${Loaded} from=${sessions}>${(data) => html`<${Table} label="Signed-in browsers" rows=${data.sessions} keyOf=${(one) => one.id} columns=${{
      Browser: (one) => `${one.label || "unknown"}${one.current ? " (this one)" : ""}`,
      "Signed in": (one) => html`<${Moment} us=${one.created} />`,
      "Last used": (one) => html`<${Moment} us=${one.used} />`,
      "": (one) => html`<button onClick=${() => ending.run(one.id)}>End session</button>`,
    }} />`}<//></section>`;
}

function Changes({ changes }) {
  return html`<section><h2>Changes</h2>
    ${changes.length ? html`<${Table} label="Changes" rows=${changes} columns=${{
      When: (one) => html`<${Moment} us=${one.at} />`, File: (one) => html`<code>${one.path}</code>`, What: (one) => one.what,
    }} />` : html`<p class="note">Configuration files that are saved from the console are listed here. Saving is on if the
      server was started with <code>--console edit</code>.</p>`}</section>`;
}
