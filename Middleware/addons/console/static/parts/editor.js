/** Texts to write and texts to compare, in CodeMirror. It is large, so it comes with the first page that shows one. */
import { useModule } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Problem } from "./elements.js";

/**
 * @typedef {{severity: "error" | "warning" | "note", line: number | null, column: number | null, text: string}} Mark
 * @typedef {{from: number, completions: {label: string, detail?: string, info?: string, apply?: string}[],
 *   hover: {from: number, to: number, text: string} | null}} Assistance
 */

// From this width on, two texts stand side by side.
const WIDE = "(min-width: 900px)";

/**
 * A text with several lines. Escape, then Tab leaves it.
 * @param {{label: string, text: string, version?: string | number, onChange?: (text: string) => void, readOnly?: boolean,
 *   language?: "json" | "text", findings?: Mark[], assist?: (text: string, offset: number) => Promise<Assistance>,
 *   at?: {line: number} | null}} props `version`: changes with a text that was not written here. What is written comes back as
 *   `text` when more has been written already, so it is not put in again. `at`: where the cursor goes; a new object goes there again
 */
export function Editor({ label, text, version = text, onChange, readOnly = false, language = "text", findings, assist, at }) {
  // What happens later asks the newest functions, not those of the time when the editor was made.
  const asked = useRef({});
  asked.current = { onChange, assist };
  const { parent, made, error } = useMade((tools, element) => tools.editor(element, {
    label, text, readOnly, language,
    onChange: (value) => asked.current.onChange?.(value),
    assist: assist && ((value, offset) => asked.current.assist(value, offset)),
  }), [label, readOnly, language]);
  useEffect(() => made?.setText(text), [made, version]);
  useEffect(() => { if (findings) made?.mark(findings); }, [made, findings]);
  useEffect(() => { if (at) made?.goTo(at.line); }, [made, at]);
  return html`<div class="editor"><${Problem} error=${error} />${!made && !error && html`<pre class="note">${text.slice(0, 4000)}</pre>`}
    <div ref=${parent}></div></div>`;
}

/**
 * What two texts differ in: side by side, or in one column where there is no room.
 * @param {{before: string, after: string, labels: [string, string], language?: "json" | "text"}} props
 */
export function Difference({ before, after, labels, language = "text" }) {
  const wide = matchMedia(WIDE).matches;
  const { parent, error } = useMade((tools, element) => tools.difference(element, { before, after, labels, wide, language }),
    [before, after, wide, language]);
  return html`<div role="group" aria-label="Difference" class="difference">
    ${before === after && html`<p class="note">There is no difference.</p>`}
    <${Problem} error=${error} />
    <div class="sides"><h3>${labels[0]}</h3><h3>${labels[1]}</h3></div>
    <div ref=${parent}></div></div>`;
}

/** Make something of CodeMirror in an element, again when `what` changes. */
function useMade(make, what) {
  const parent = useRef(null);
  const [made, setMade] = useState(null);
  const { data: module, error } = useModule("editor", () => import("./codemirror.js"), "The editor could not be loaded.");
  useEffect(() => {
    if (!module) return undefined;
    const own = make(module, parent.current);
    setMade(own);
    return () => {
      own.destroy();
      setMade(null);
    };
  }, [module, ...what]);
  return { parent, made, error };
}
