/** The table of runs: rows on a wide page, cards on a phone, windowed when it is long. */
import { html, useLayoutEffect, useState } from "../../html.js";
import { Moment, count, duration, shortId, speed } from "../../parts/format.js";
import { isUnfinished } from "../../parts/run_data.js";
import { State } from "../../parts/state.js";
import { useWindow } from "../../parts/window.js";
import { useNow } from "../../parts/clock.js";
import { navigate } from "../../routes.js";

const COLUMNS = ["Started", "Run", "Status", "Route", "Question", "Time", "First token", "Tokens", "Speed", "Endpoint"];
const NUMBERS = ["Time", "First token", "Tokens", "Speed"];

/**
 * @param {{runs: object[], total: number, live: Map<string, number>, selected: string[], select: (id: string, on: boolean) => void,
 *          stop: (id: string) => void, current: string | null, setCurrent: (id: string) => void}} props
 */
export function RunTable({ runs, total, live, selected, select, stop, current, setCurrent }) {
  const [rowHeight, setRowHeight] = useState(30);
  const { ref, from, to, before, after } = useWindow(runs.length, rowHeight);
  const now = useNow(runs.some((run) => isUnfinished(run.status)));
  useLayoutEffect(() => {
    // All rows have the height of the first: the style sheet says which, on a phone another.
    const measure = () => {
      const height = ref.current?.querySelector("[data-run]")?.getBoundingClientRect().height;
      if (height) setRowHeight(height);
    };
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, [runs.length > 0]);
  // Before the next key is handled: a later focus would choose the run before it, and the two would take turns for ever.
  useLayoutEffect(() => {
    if (current) ref.current?.querySelector(`[data-run="${CSS.escape(current)}"] a`)?.focus();
  }, [current, from]);
  const filler = (height) => height > 0 && html`<tr aria-hidden="true" class="filler"><td style=${{ height: `${height}px` }}></td></tr>`;
  return html`<table class="runs" role="table" aria-label="Runs" aria-rowcount=${total + 1}>
    <thead role="rowgroup"><tr role="row" aria-rowindex="1">
      <td role="cell" class="tick"></td>
      ${COLUMNS.map((name) => html`<th role="columnheader" scope="col" key=${name}
        class=${`${cssName(name)} ${NUMBERS.includes(name) ? "num" : ""}`}>${name}</th>`)}
    </tr></thead>
    <tbody role="rowgroup" ref=${ref}>
      ${filler(before)}
      ${runs.slice(from, to).map((run, index) => html`<${Row} key=${run.id} run=${run} index=${from + index + 2} stop=${stop}
        tokens=${live.get(run.id)} now=${isUnfinished(run.status) ? now : 0} checked=${selected.includes(run.id)} select=${select}
        current=${run.id === current} setCurrent=${setCurrent} />`)}
      ${filler(after)}
    </tbody>
  </table>`;
}

const cssName = (name) => name.toLowerCase().replace(" ", "-");

function Row({ run, index, tokens, now, checked, select, stop, current, setCurrent }) {
  const name = shortId(run.id);
  const hash = `#/runs/${encodeURIComponent(run.id)}`;
  const open = (event) => {
    if (event.target.closest("a, button, input, label") || !getSelection().isCollapsed) return;
    navigate(hash);
  };
  const cell = (column, content, title) => html`<td role="cell" data-label=${column} title=${title}
    class=${`${cssName(column)} ${NUMBERS.includes(column) ? "num" : ""}`}>${content}</td>`;
  const running = isUnfinished(run.status);
  const written = tokens ?? run["usage.output_tokens"];
  return html`<tr role="row" aria-rowindex=${index} data-run=${run.id} class=${current ? "current" : ""} onClick=${open}>
    <td role="cell" class="tick"><input type="checkbox" aria-label=${`Select run ${name}`} checked=${checked}
      onChange=${(event) => select(run.id, event.currentTarget.checked)} /></td>
    ${cell("Started", html`<${Moment} us=${run.started} />`)}
    ${cell("Run", html`<a class="mono" href=${hash} aria-label=${`Run ${name}`} onFocus=${() => setCurrent(run.id)}>${name}</a>${
      run.pinned ? html`<span class="pin" title="pinned"> ⚑</span>` : ""}`)}
    ${cell("Status", html`<${State} status=${run.status} title=${run["error.type"]} />`)}
    ${cell("Route", run.route || run.workflow || "-", run["route.reason"] ?? undefined)}
    ${cell("Question", question(run), run.error ?? run.question ?? undefined)}
    ${cell("Time", duration(runTime(run, now), "-"))}
    ${cell("First token", duration(run.first_token == null ? null : run.first_token - run.started, "-"))}
    ${cell("Tokens", tokenPair(run, written))}
    ${cell("Speed", speed(written, run.first_token == null ? null : (run.answered ?? (running ? now : run.ended)) - run.first_token, "-"))}
    ${cell("Endpoint", html`<span class="names">${run.endpoints.join(", ") || "-"}</span>${running
      && html`<button type="button" class="stop" aria-label=${`Stop run ${name}`} onClick=${() => stop(run.id)}>Stop</button>`}`)}
  </tr>`;
}

function question(run) {
  const kind = run.kind !== "chat" && html`<span class="kind">${run.kind} </span>`;
  if (run.error) return html`${kind}<span class="bad">${run.error}</span>`;
  if (run.question != null) return html`${kind}${run.question}`;
  return html`${kind}<span class="quiet-text">${run.private ? "private" : "-"}</span>`;
}

/** @param {object} run @param {number} now 0: it has ended @returns {number | null} until the answer was out */
function runTime(run, now) {
  const end = run.answered ?? run.ended ?? (now || null);
  return end === null ? null : end - run.started;
}

function tokenPair(run, written) {
  const read = run["usage.input_tokens"];
  if (read == null && written == null) return "-";
  return `${run.estimated ? "≈" : ""}${count(read, "-")}/${count(written, "-")}`;
}
