/** A tree as a flat list of rows, by the ARIA pattern. The choice follows the arrow keys. */
import { html, useEffect, useId, useMemo, useRef } from "../html.js";
import { showRow, useWindow } from "./window.js";

/**
 * @typedef {{key: string | number, level: number, label: string, expanded?: boolean, disabled?: boolean,
 *            class?: string, content: any}} TreeRow
 * `label`: the accessible name; `expanded`: absent for a row without children; `disabled`: cannot be chosen
 */

/**
 * @param {{label: string, rows: TreeRow[], chosen: string | number | null, rowHeight: number, headHeight?: number,
 *          onChoose: (key: any, clicked?: boolean) => void, onToggle: (key: any, expanded: boolean) => void}} props
 * `rows`: the visible rows in order, without the children of collapsed ones
 */
export function Tree({ label, rows, chosen, rowHeight, headHeight = 0, onChoose, onToggle }) {
  const id = useId();
  const { ref, from, to, before, after } = useWindow(rows.length, rowHeight);
  const active = rows.findIndex((row) => row.key === chosen);
  const moved = useRef(false);
  useEffect(() => {
    // Only a key moves the page: a choice made with the mouse is visible already.
    if (moved.current && active >= 0) showRow(ref.current, active, rowHeight, headHeight);
    moved.current = false;
  }, [active]);
  const onKeyDown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const move = keyAction(event.key, rows, active);
    if (!move) return;
    event.preventDefault();
    moved.current = true;
    if (move.toggle !== undefined) onToggle(rows[active].key, move.toggle);
    // The chosen row may be far from the visible ones: the choice stays, and it is looked at.
    else if (move.to === active) showRow(ref.current, active, rowHeight, headHeight);
    else if (move.to >= 0) onChoose(rows[move.to].key);
  };
  const shown = rows.slice(from, to);
  const places = useMemo(() => placesOf(rows), [rows]);
  return html`<div class="tree" role="tree" aria-label=${label} tabindex="0" ref=${ref} onKeyDown=${onKeyDown}
      aria-activedescendant=${active >= from && active < to ? `${id}r${rows[active].key}` : undefined}>
    ${before > 0 && html`<div role="none" style=${{ height: `${before}px` }}></div>`}
    ${shown.map((row, n) => html`<div role="treeitem" key=${row.key} id=${`${id}r${row.key}`} aria-level=${row.level}
        aria-posinset=${places[from + n].at} aria-setsize=${places[from + n].group.size}
        aria-label=${row.label} aria-expanded=${row.expanded === undefined ? undefined : String(row.expanded)}
        aria-selected=${row.disabled ? undefined : String(row.key === chosen)} aria-disabled=${row.disabled ? "true" : undefined}
        class=${`row ${row.class ?? ""}`} style=${{ height: `${rowHeight}px`, "--level": row.level - 1 }}
        onClick=${() => !row.disabled && onChoose(row.key, true)}>
      <span class="twist" aria-hidden="true" onClick=${(event) => {
        if (row.expanded === undefined) return;
        event.stopPropagation();
        onToggle(row.key, !row.expanded);
      }}>${row.expanded === undefined ? "" : row.expanded ? "▾" : "▸"}</span>
      ${row.content}
    </div>`)}
    ${after > 0 && html`<div role="none" style=${{ height: `${after}px` }}></div>`}
  </div>`;
}

/** Where each row stands among its siblings: not all rows are drawn, so the browser cannot count them. */
function placesOf(rows) {
  const groups = [];
  return rows.map(({ level }) => {
    groups.length = Math.min(groups.length, level);
    const group = groups[level - 1] ??= { size: 0 };
    group.size += 1;
    return { at: group.size, group };
  });
}

/** @returns {{to: number} | {toggle: boolean} | null} what a key does to the row at `active` */
function keyAction(key, rows, active) {
  const row = rows[active];
  const next = (start, step) => {
    let index = start;
    while (rows[index]?.disabled) index += step;
    return { to: index in rows ? index : -1 };
  };
  switch (key) {
    case "ArrowDown": return next(active + 1, 1);
    case "ArrowUp": return active < 0 ? next(0, 1) : next(active - 1, -1);
    case "Home": return next(0, 1);
    case "End": return next(rows.length - 1, -1);
    case "ArrowRight":
      if (row?.expanded === false) return { toggle: true };
      return row?.expanded ? next(active + 1, 1) : null;
    case "ArrowLeft":
      if (row?.expanded) return { toggle: false };
      return row ? { to: rows.findLastIndex((other, index) => index < active && other.level < row.level) } : null;
    case "Enter":
    case " ":
      if (active < 0) return next(0, 1);
      return row.expanded === undefined ? null : { toggle: !row.expanded };
    default: return null;
  }
}
