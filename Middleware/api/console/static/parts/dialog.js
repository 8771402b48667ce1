/** Dialogs: they keep the focus, close with Escape, and give the focus back. */
import { html, useEffect, useId, useRef, useState } from "../html.js";
import { Problem } from "./alert.js";

/** @param {{title: string, onClose: () => void, children: any}} props */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <h2 id=${id}>${title}</h2>
    ${children}
  </dialog>`;
}

/**
 * Ask before something is done that cannot be taken back. An error of `action` is shown in the dialog.
 * @param {{title: string, children: any, confirm: string, action: () => Promise<any>, onClose: () => void}} props
 */
export function Confirm({ title, children, confirm, action, onClose }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    try {
      await action();
      onClose();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    ${children}
    <${Problem} error=${error} />
    <p class="actions">
      <button type="button" class="danger" disabled=${busy} onClick=${run}>${confirm}</button>
      <button type="button" onClick=${onClose}>Cancel</button>
    </p>
  <//>`;
}
