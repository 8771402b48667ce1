/** Dialogs: they keep the focus, close with Escape, and give the focus back. */
import { useAction } from "../api.js";
import { html, instead, useEffect, useId, useRef } from "../html.js";
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
  return html`<dialog ref=${element} aria-labelledby=${id} onCancel=${instead(onClose)}>
    <h2 id=${id}>${title}</h2>
    ${children}
  </dialog>`;
}

/**
 * Ask before something is done. The dialog closes when it is done; an error is shown in it.
 * @param {{title: string, children: any, confirm: string, action: () => Promise<any>, onClose: () => void, look?: string,
 *   disabled?: boolean}} props `look`: of the button; what cannot be taken back is a danger
 */
export function Confirm({ title, children, confirm, action, onClose, look = "danger", disabled = false }) {
  const doing = useAction(async () => {
    await action();
    onClose();
  });
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${instead(doing.run)}>
      ${children}
      <${Problem} error=${doing.error} />
      <p class="actions">
        <button type="submit" class=${look} disabled=${doing.busy || disabled}>${confirm}</button>
        <button onClick=${onClose}>Cancel</button>
      </p>
    </form>
  <//>`;
}
