/** What stands on a page when something did not work, or is under way. */
import { html, useEffect, useState } from "../html.js";

/**
 * @param {{error: {message: string, where?: string} | null, retry?: () => void, onClose?: () => void}} props
 */
export function Problem({ error, retry, onClose }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <p><span class="shape" aria-hidden="true">✕</span> ${error.message}</p>
    ${error.where && html`<p class="where">${error.where}</p>`}
    <p class="actions">
      ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
      ${onClose && html`<button type="button" onClick=${onClose}>Close</button>`}
    </p>
  </div>`;
}

/** A line that appears only if something takes long: most answers are there before it could be read. */
export function Loading({ what = "Loading" }) {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return html`<p class="loading" role="status">${shown ? `${what} …` : ""}</p>`;
}

/** What a list says when it has nothing: what would be here, and how to get it. */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}
