/** The page Backends: the queue, and what recorded calls say of each endpoint. Servers are asked only on request. */
import { api, useAction, useApi } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { Check, Empty, Facts, Loaded, Problem, State, Table, Title } from "../parts/elements.js";
import { count, counted, duration, NOT_REPORTED, percent, rate } from "../parts/format.js";

const EVERY_MS = 5000;

const COLUMNS = {
  Endpoint: (one) => one.name,
  Server: (one) => html`<span class="mono">${one.server}</span> <span class="note">${one.type}</span>`,
  Status: (one) => html`<${State} status=${one.status} />`,
  Model: (one) => one.model ?? NOT_REPORTED,
  Slots: (one) => one.slots ?? NOT_REPORTED,
  "Calls (24 h)": (one) => html`${count(one.calls)} <${Strip} hours=${one.hours} />`,
  Failed: (one) => (one.calls ? `${count(one.failed)} (${percent(one.failed, one.calls)})` : "-"),
  "First token": (one) => duration(one.first_token_us, "-"),
  Speed: (one) => rate(one.speed, "-"),
  "Last error": (one) => one.last_error ?? "none",
};

export default function Backends() {
  const backends = useApi("backends");
  const [every, setEvery] = useState(false);
  const check = useAction(async () => backends.change(await api("POST", "backends/check", {})));
  useEffect(() => (every ? repeat(check.run) : undefined), [every]);
  return html`
    <${Title}>Backends<//>
    <p class="note">Figures come from recorded calls. Servers are asked only by Check now and Every 5 seconds, which make no server load a model.</p>
    <${Problem} error=${check.error} retry=${check.run} />
    <p class="actions">
      <${Check} label="Every 5 seconds" checked=${every} onChange=${setEvery} />
      <button disabled=${check.busy} onClick=${check.run}>Check now</button>
    </p>
    <${Loaded} from=${backends}>${({ queue, endpoints }) => html`
      <section aria-label="Queue" class="queue"><h2>Queue</h2>
        <${Facts} look="" rows=${[["Running", `${count(queue.running)} of ${count(queue.limit, "any number")}`], ["Waiting", count(queue.waiting)], ["Level", queue.level]]} />
      </section>
      ${endpoints.length ? html`<${Table} label="Endpoints" look="endpoints" rows=${endpoints} columns=${COLUMNS} keyOf=${(one) => one.name} />`
        : html`<${Empty} title="No endpoints">
          <p>Each file in the folder Endpoints of the configuration is one. <code>python server.py init</code> writes them.</p><//>`}`}<//>`;
}

/** Call `work` at once and again after it has ended, while the page is visible. @param {() => Promise<void>} work */
function repeat(work) {
  let timer = 0;
  let over = false;
  const round = async () => {
    if (!document.hidden) await work();
    if (!over) timer = setTimeout(round, EVERY_MS);
  };
  round();
  return () => {
    over = true;
    clearTimeout(timer);
  };
}

/** The last 24 hours: a bar for each, its failed part on the ground. @param {{hours: {calls: number, failed: number}[]}} props */
function Strip({ hours }) {
  const most = Math.max(1, ...hours.map(({ calls }) => calls));
  const failed = hours.reduce((sum, hour) => sum + hour.failed, 0);
  const busiest = hours.findIndex(({ calls }) => calls === most);
  const ago = hours.length - 1 - busiest;
  const words = busiest < 0 ? "No calls in the last 24 hours" : `Last 24 hours: most calls ${ago ? `${counted(ago, "hour")} ago` : "in this hour"}, ${
    count(most)}; ${failed ? `${count(failed)} failed` : "none failed"}`;
  const bar = (name, n, value) => {
    const height = Math.max(2, 20 * value / most);
    return value > 0 && html`<rect class=${name} x=${n * 4} width="3" y=${20 - height} height=${height} />`;
  };
  return html`<svg class="strip" role="img" aria-label=${words} width=${hours.length * 4} height="20">
    <title>${words}</title>${hours.map((hour, n) => [bar("calls", n, hour.calls), bar("failed", n, hour.failed)])}</svg>`;
}
