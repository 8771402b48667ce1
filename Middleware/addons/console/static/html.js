/** What every page imports: templates and hooks of preact, under one name. */
import { h, render } from "preact";
import htm from "htm";

// A button sends a form only if it says so, other than in HTML.
const element = (tag, props, ...children) => h(tag, tag === "button" ? { type: "button", ...props } : props, ...children);

/** Make elements from a template. Values become text or properties, never markup. */
export const html = htm.bind(element);
export { render };

/** What an event does in place of what the browser would do. @param {(event: Event) => any} action */
export const instead = (action) => (event) => {
  event.preventDefault();
  return action(event);
};
export { useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
