/** The page Backends: the queue, and what recorded calls say of each endpoint. Servers are asked only on request. */
import { api, useApi } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Empty, Loading, Problem } from "../parts/alert.js";
import { Check } from "../parts/fields.js";
import { count, counted, duration, NOT_REPORTED, percent } from "../parts/format.js";
import { Title } from "../parts/title.js";

const EVERY = 5000;
// Shown before the word, so that the states differ without colours.
const SHAPES = { healthy: "●", slow: "◐", loading: "◌", stopped: "✕", "not asked": "○" };
const HEADERS = ["Endpoint", "Server", "Status", "Model", "Slots", "Calls (24 h)", "Failed", "First token", "Speed", "Last error"];

/**
 * @typedef {object} Endpoint
 * @property {string} name
 * @property {string} server
 * @property {string} type
 * @property {string} status
 * @property {string | null} model
 * @property {string | null} slots
 * @property {number} calls
 * @property {number} failed
 * @property {number | null} first_token_us
 * @property {number | null} speed
 * @property {string | null} last_error
 * @property {{calls: number, failed: number}[]} hours oldest first
 */

export default function Backends() {
  const { data, error, reload, change } = useApi("backends");
  const [failed, setFailed] = useState(null);
  const [asking, setAsking] = useState(false);
  const [every, setEvery] = useState(false);
  const check = async () => {
    setAsking(true);
    try {
      change(await api("POST", "backends/check", {}));
      setFailed(null);
    } catch (problem) {
      setFailed(problem);
    }
    setAsking(false);
  };
  useEffect(() => every ? repeat(check) : undefined, [every]);
  return html`
    <${Title}>Backends<//>
    <p class="note">Figures come from recorded calls. Servers are asked only by Check now and Every 5 seconds, which make no server load a model.</p>
    <${Problem} error=${error} retry=${reload} />
    <${Problem} error=${failed} retry=${check} />
    ${!data && !error && html`<${Loading} />`}
    <div class="head">
      ${data && html`<${Queue} queue=${data.queue} />`}
      <span class="push"></span>
      <${Check} label="Every 5 seconds" checked=${every} onChange=${setEvery} />
      <button type="button" disabled=${asking} onClick=${check}>Check now</button>
    </div>
    ${data?.endpoints.length > 0 && html`<${Endpoints} endpoints=${data.endpoints} />`}
    ${data?.endpoints.length === 0 && html`<${Empty} title="No endpoints">
      <p>Each file in the folder Endpoints of the configuration is one. <code>python server.py init</code> writes them.</p><//>`}`;
}

/** Call `work` at once and again after it has ended, while the page is visible. @param {() => Promise<void>} work */
function repeat(work) {
  let timer = 0;
  let over = false;
  const round = () => (document.hidden ? Promise.resolve() : work()).then(() => {
    if (!over) timer = setTimeout(round, EVERY);
  });
  round();
  return () => {
    over = true;
    clearTimeout(timer);
  };
}

/** @param {{queue: {level: string, limit: number | null, running: number, waiting: number}}} props */
function Queue({ queue }) {
  return html`
    <section aria-label="Queue" class="queue">
      <h2>Queue</h2>
      <dl>
        <div><dt>Running</dt><dd>${count(queue.running)} of ${queue.limit == null ? "any number" : count(queue.limit)}</dd></div>
        <div><dt>Waiting</dt><dd>${count(queue.waiting)}</dd></div>
        <div><dt>Level</dt><dd>${queue.level}</dd></div>
      </dl>
    </section>`;
}

/** @param {{endpoints: Endpoint[]}} props */
function Endpoints({ endpoints }) {
  return html`
    <table class="cards endpoints" role="table" aria-label="Endpoints">
      <thead role="rowgroup"><tr role="row">${HEADERS.map((name) => html`<th role="columnheader" scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody role="rowgroup">${endpoints.map((endpoint) => html`<${Row} endpoint=${endpoint} key=${endpoint.name} />`)}</tbody>
    </table>`;
}

/** @param {{endpoint: Endpoint}} props */
function Row({ endpoint: one }) {
  const values = [
    one.name,
    html`<span class="mono server">${one.server}</span> <span class="note">${one.type}</span>`,
    html`<span class=${`health ${one.status.replace(" ", "-")}`}><span class="shape" aria-hidden="true">${SHAPES[one.status] ?? "?"}</span> ${one.status}</span>`,
    one.model ?? NOT_REPORTED,
    one.slots ?? NOT_REPORTED,
    html`${count(one.calls)} <${Strip} hours=${one.hours} />`,
    one.calls ? `${count(one.failed)} (${percent(one.failed, one.calls)})` : "-",
    duration(one.first_token_us, "-"),
    one.speed == null ? "-" : `${count(Math.round(one.speed))}/s`,
    one.last_error ?? "none",
  ];
  return html`<tr role="row">${values.map((value, n) => html`
    <td role=${n ? "cell" : "rowheader"} data-label=${HEADERS[n]} key=${n}><div>${value}</div></td>`)}</tr>`;
}

/** The last 24 hours: a bar for each, its failed part on the ground. @param {{hours: {calls: number, failed: number}[]}} props */
function Strip({ hours }) {
  const most = Math.max(1, ...hours.map(({ calls }) => calls));
  const failed = hours.reduce((sum, hour) => sum + hour.failed, 0);
  const busiest = hours.findIndex(({ calls }) => calls === most);
  const ago = hours.length - 1 - busiest;
  const when = ago ? `${counted(ago, "hour")} ago` : "in this hour";
  const words = busiest < 0 ? "No calls in the last 24 hours"
    : `Last 24 hours: most calls ${when}, ${count(most)}; ${failed ? `${count(failed)} failed` : "none failed"}`;
  const bar = (name, n, value) => value > 0 && html`
    <rect class=${name} x=${n * 4} width="3" y=${20 - Math.max(2, 20 * value / most)} height=${Math.max(2, 20 * value / most)} />`;
  return html`
    <svg class="strip" role="img" aria-label=${words} viewBox="0 0 ${hours.length * 4} 20" width=${hours.length * 4} height="20">
      <title>${words}</title>
      ${hours.map((hour, n) => html`<g key=${n}>${bar("calls", n, hour.calls)}${bar("failed", n, hour.failed)}</g>`)}
    </svg>`;
}
