/** What stands on a page when something did not work, is under way, or is not there. */
import { html, useEffect, useState } from "../html.js";

/** @param {{error: {message: string, where?: string} | null, retry?: () => void, onClose?: () => void}} props */
export function Problem({ error, retry, onClose }) {
  return error && html`<div class="problem" role="alert">
    <p><span class="shape" aria-hidden="true">✕</span> ${error.message}</p>
    ${error.where && html`<p class="where">${error.where}</p>`}
    <p class="actions">
      ${retry && html`<button onClick=${retry}>Try again</button>`}
      ${onClose && html`<button onClick=${onClose}>Close</button>`}
    </p>
  </div>`;
}

/** A line that appears only if something takes long: most answers are there before it could be read. */
export function Loading() {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return html`<p class="loading" role="status">${shown ? "Loading …" : ""}</p>`;
}

/**
 * What a call of the API returned, once it is there.
 * @param {{from: ReturnType<typeof import("../api.js").useApi>, children: (data: any) => any}} props
 */
export function Loaded({ from: { data, error, reload }, children }) {
  return [html`<${Problem} error=${error} retry=${reload} />`, data ? children(data) : !error && html`<${Loading} />`];
}

/** What a list says when it has nothing: what would be here, and how to get it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}
