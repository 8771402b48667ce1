/** The table of runs: rows on a wide page, cards on a phone, windowed when it is long. */
import { url } from "../../api.js";
import { html, useLayoutEffect, useRef, useState } from "../../html.js";
import { useNow } from "../../parts/clock.js";
import { isUnfinished, State } from "../../parts/elements.js";
import { Moment, count, duration, shortId, speed } from "../../parts/format.js";
import { useWindow } from "../../parts/window.js";
import { navigate } from "../../routes.js";

const COLUMNS = ["Started", "Run", "Status", "Route", "Question", "Time", "First token", "Tokens", "Speed", "Endpoint"];

/** The class of a column. */
const look = (name) => `${name.toLowerCase().replace(" ", "-")} ${["Time", "First token", "Tokens", "Speed"].includes(name) ? "num" : ""}`;

/**
 * @param {{runs: object[], total: number, live: Map<string, number>, selected: string[], select: (id: string, on: boolean) => void,
 *          stop: (id: string) => void, current: string | null, setCurrent: (id: string) => void}} props
 */
export function RunTable({ runs, total, live, selected, current, ...rest }) {
  const [rowHeight, setRowHeight] = useState(30);
  const { ref, from, to, before, after } = useWindow(runs.length, rowHeight);
  const now = useNow(runs.some((run) => isUnfinished(run.status)));
  useLayoutEffect(() => {
    // All rows have the height of the first: the style sheet says which, on a phone another.
    const measure = () => setRowHeight((old) => ref.current?.querySelector("[data-run]")?.getBoundingClientRect().height || old);
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  // Before the next key is handled: a later focus would choose the run before it, and the two would take turns for ever.
  const last = useRef(null);
  useLayoutEffect(() => {
    // Rows that come and go while one scrolls must not scroll back.
    if (current) ref.current?.querySelector(`[data-run="${CSS.escape(current)}"] a`)?.focus({ preventScroll: current === last.current });
    last.current = current;
  }, [current, from]);
  const filler = (height) => height > 0 && html`<tr aria-hidden="true" class="filler"><td style=${{ height: `${height}px` }}></td></tr>`;
  return html`<table class="runs" role="table" aria-label="Runs" aria-rowcount=${total + 1}>
    <thead role="rowgroup"><tr role="row" aria-rowindex="1">
      <td role="cell" class="tick"></td>
      ${COLUMNS.map((name) => html`<th role="columnheader" scope="col" key=${name} class=${look(name)}>${name}</th>`)}
    </tr></thead>
    <tbody role="rowgroup" ref=${ref}>
      ${filler(before)}
      ${runs.slice(from, to).map((run, index) => html`<${Row} key=${run.id} run=${run} index=${from + index + 2} tokens=${live.get(run.id)}
        now=${isUnfinished(run.status) ? now : null} checked=${selected.includes(run.id)} current=${run.id === current} ...${rest} />`)}
      ${filler(after)}
    </tbody>
  </table>`;
}

/** `now`: null for a run that has ended */
function Row({ run, index, tokens, now, checked, select, stop, current, setCurrent }) {
  const name = shortId(run.id);
  const hash = url`#/runs/${run.id}`;
  const { started, answered, ended, first_token: first, "usage.input_tokens": read } = run;
  const written = tokens ?? run["usage.output_tokens"];
  // The time and the speed are those of the answer; nodes may go on after it.
  const since = (begin, end) => (begin == null || end == null ? null : end - begin);
  const cells = {
    Started: html`<${Moment} us=${started} />`,
    Run: html`<a class="mono" href=${hash} aria-label=${`Run ${name}`} onFocus=${() => setCurrent(run.id)}>${name}</a>${
      run.pinned && html`<span class="pin" title="pinned"> ⚑</span>`}`,
    Status: html`<${State} status=${run.status} title=${run["error.type"]} />`,
    Route: run.route || run.workflow || "-",
    Question: html`${run.kind !== "chat" && html`<span class="kind">${run.kind} </span>`}${run.error ? html`<span class="bad">${run.error}</span>`
      : run.question ?? html`<span class="note">${run.private ? "private" : "-"}</span>`}`,
    Time: duration(since(started, answered ?? ended ?? now), "-"),
    "First token": duration(since(started, first), "-"),
    Tokens: read == null && written == null ? "-" : `${run.estimated ? "≈" : ""}${count(read, "-")}/${count(written, "-")}`,
    // Of several calls, the tokens are a sum: the run's own page has the speed of each.
    Speed: run.calls > 1 ? "-" : speed(written, since(first, answered ?? now ?? ended), "-"),
    Endpoint: html`<span>${run.endpoints.join(", ") || "-"}</span>${now
      && html`<button class="stop" aria-label=${`Stop run ${name}`} onClick=${() => stop(run.id)}>Stop</button>`}`,
  };
  const titles = { Route: run["route.reason"], Question: run.error ?? run.question };
  const open = ({ target }) => {
    if (!target.closest("a, button, input") && getSelection().isCollapsed) navigate(hash);
  };
  return html`<tr role="row" aria-rowindex=${index} data-run=${run.id} class=${current ? "current" : ""} onClick=${open}>
    <td role="cell" class="tick"><input type="checkbox" aria-label=${`Select run ${name}`} checked=${checked}
      onChange=${(event) => select(run.id, event.currentTarget.checked)} /></td>
    ${COLUMNS.map((column) => html`<td role="cell" key=${column} data-label=${column} title=${titles[column]} class=${look(column)}>${cells[column]}</td>`)}
  </tr>`;
}
