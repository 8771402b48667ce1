/** Windowing: of a list with more rows than this, only those near the visible part of the page are drawn. */
import { useLayoutEffect, useRef, useState } from "../html.js";

const WINDOWED_ABOVE = 200;
// Rows drawn above and below the visible ones, so that slow scrolling never shows an empty place.
const MARGIN = 20;

/**
 * @param {number} length of the list
 * @param {number} rowHeight in pixels, the same for all rows
 * @returns {{ref: {current: HTMLElement | null}, from: number, to: number, before: number, after: number}}
 *     `ref`: for the element that holds the rows; `before`, `after`: pixels to leave empty around the drawn rows
 */
export function useWindow(length, rowHeight) {
  const ref = useRef(null);
  const [range, setRange] = useState({ from: 0, to: WINDOWED_ABOVE });
  const windowed = length > WINDOWED_ABOVE;
  useLayoutEffect(() => {
    if (!windowed) return undefined;
    let frame = 0;
    const look = () => {
      frame = 0;
      const element = ref.current;
      if (!element) return;
      const top = element.getBoundingClientRect().top;
      const box = scrollParent(element);
      const visibleTop = box ? Math.max(0, box.getBoundingClientRect().top) : 0;
      const visibleHeight = box ? box.clientHeight : window.innerHeight;
      const first = Math.floor((visibleTop - top) / rowHeight) - MARGIN;
      const from = Math.max(0, Math.min(first, length - 1));
      const to = Math.min(length, Math.max(0, first) + Math.ceil(visibleHeight / rowHeight) + 2 * MARGIN);
      setRange((old) => (old.from === from && old.to === to ? old : { from, to }));
    };
    const later = () => { frame ||= requestAnimationFrame(look); };
    look();
    // Scrolling of any box does not bubble, so it is caught on its way down.
    document.addEventListener("scroll", later, { capture: true, passive: true });
    window.addEventListener("resize", later);
    return () => {
      cancelAnimationFrame(frame);
      document.removeEventListener("scroll", later, { capture: true });
      window.removeEventListener("resize", later);
    };
  }, [windowed, length, rowHeight]);
  if (!windowed) return { ref, from: 0, to: length, before: 0, after: 0 };
  const to = Math.min(range.to, length);
  const from = Math.min(range.from, to);
  return { ref, from, to, before: from * rowHeight, after: (length - to) * rowHeight };
}

/** @param {HTMLElement} element @returns {HTMLElement | null} the box that it scrolls in; null: the page */
function scrollParent(element) {
  for (let box = element; box && box !== document.body; box = box.parentElement) {
    if (/auto|scroll/.test(getComputedStyle(box).overflowY) && box.scrollHeight > box.clientHeight) return box;
  }
  return null;
}

/** Bring a row into the visible part, whether it is drawn or not. @param {HTMLElement} list */
export function showRow(list, index, rowHeight, headHeight = 0) {
  const top = list.getBoundingClientRect().top + index * rowHeight;
  const box = scrollParent(list);
  const bounds = box ? box.getBoundingClientRect() : { top: 0, bottom: window.innerHeight };
  const upper = Math.max(0, bounds.top) + headHeight;
  const lower = Math.min(window.innerHeight, bounds.bottom);
  const by = top < upper ? top - upper : Math.max(0, top + rowHeight - lower);
  if (by) (box ?? window).scrollBy(0, by);
}
