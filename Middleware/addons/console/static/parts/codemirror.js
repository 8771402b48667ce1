/** CodeMirror as the console uses it. Only editor.js imports this module, and not before a text is shown. */
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

// The styles below are added by script, which the policy allows to code that knows the page's nonce.
const NONCE = document.querySelector("script[nonce]")?.nonce ?? "";
const SEVERITIES = { error: "error", warning: "warning", note: "info" };
const WORD = /"(?:[^"\\\n]|\\.)*"?|[\w.+-]+|./uy;

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: [tags.number, tags.bool, tags.null], fontWeight: "600" },
  { tag: tags.punctuation, color: "var(--quiet)" },
]);
const SUNKEN = { background: "var(--sunken)", color: "var(--quiet)", border: "0" };
const SURFACE = { background: "var(--surface)", color: "var(--text)", border: "1px solid var(--edge)", borderRadius: "4px" };
const CHOSEN = { background: "var(--accent-soft)", color: "inherit" };
const GONE = { background: "var(--bad-soft)" };
const underlined = (colour) => ({ background: "none", textDecoration: `underline var(${colour})` });
const THEME = EditorView.theme({
  "&, .cm-tooltip, .cm-panels, .cm-button, .cm-textfield": SURFACE,
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", fontSize: ".92em", lineHeight: "1.45" },
  ".cm-gutters, .cm-foldPlaceholder, .cm-collapsedLines": SUNKEN,
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": CHOSEN,
  ".cm-selectionMatch, .cm-searchMatch, &.cm-focused .cm-matchingBracket, .cm-tooltip-autocomplete ul li[aria-selected]": CHOSEN,
  ".cm-searchMatch-selected": { outline: "1px solid var(--accent)" },
  ".cm-tooltip": { maxWidth: "min(32rem, 90vw)" },
  ".cm-explained": { padding: ".3rem .6rem" },
  ".cm-completionDetail": { color: "var(--quiet)", fontStyle: "normal" },
  ".cm-changedLine, &.cm-merge-b .cm-changedLine": CHOSEN,
  "&.cm-merge-a .cm-changedLine, .cm-deletedChunk": GONE,
  "& .cm-changedText, &.cm-merge-b .cm-changedText": underlined("--accent"),
  "&.cm-merge-a .cm-changedText, .cm-deletedChunk .cm-deletedText": underlined("--bad"),
  // Its own sign is in few fonts.
  ".cm-collapsedLines:before, .cm-collapsedLines:after": { content: '"⋯"' },
});

/** What every text has. */
const common = (label, language) => [
  EditorView.cspNonce.of(NONCE), THEME, syntaxHighlighting(COLOURS), EditorView.lineWrapping, lineNumbers(),
  EditorView.contentAttributes.of({ "aria-label": label }), ...(language === "json" ? [json()] : []),
];
const READ_ONLY = [EditorState.readOnly.of(true), EditorView.contentAttributes.of({ "aria-readonly": "true" })];

/**
 * @param {HTMLElement} parent
 * @param {{label: string, text: string, readOnly: boolean, language: string, onChange: (text: string) => void,
 *   assist?: (text: string, offset: number) => Promise<import("./editor.js").Assistance>}} how
 */
export function editor(parent, { label, text, readOnly, language, onChange, assist }) {
  let known = text;
  const view = new EditorView({ parent, state: EditorState.create({ doc: text, extensions: [
    ...common(label, language), foldGutter(), lintGutter(), history(), drawSelection(), bracketMatching(), highlightSelectionMatches(),
    indentUnit.of(/^(?: +|\t)/m.exec(text)?.[0] ?? "  "), ...(readOnly ? READ_ONLY : [closeBrackets()]), ...(assist ? assistance(assist) : []),
    keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...foldKeymap, ...completionKeymap,
      ...lintKeymap, ...(readOnly ? [] : [indentWithTab])]),
    EditorView.updateListener.of((update) => {
      const now = update.docChanged ? update.state.doc.toString() : known;
      if (now === known) return;
      known = now;
      onChange(now);
    }),
  ] }) });
  return {
    /** Show another text, which is not reported as a change. The cursor stays where the text is there already. */
    setText(value) {
      if (value === known) return;
      known = view.state.toText(value).toString();
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: value } });
    },
    mark(findings) {
      view.dispatch(setDiagnostics(view.state, findings.filter((one) => one.line).map((one) => {
        const [from, to] = span(view.state.doc, one.line, one.column);
        return { from, to, severity: SEVERITIES[one.severity], message: one.text };
      })));
    },
    goTo(number) {
      const line = view.state.doc.line(Math.min(Math.max(number, 1), view.state.doc.lines));
      view.dispatch({ selection: { anchor: line.from }, effects: EditorView.scrollIntoView(line.from, { y: "center" }) });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}

/** Where a word begins and ends. The server's columns count characters, those of the editor UTF-16 units. */
function span(doc, line, column) {
  const { from, to, text } = doc.line(Math.min(line, doc.lines));
  const start = [...text].slice(0, (column ?? 1) - 1).join("").length;
  WORD.lastIndex = column ? start : text.length - text.trimStart().length;
  const first = WORD.lastIndex;
  const length = column ? WORD.exec(text)?.[0].length ?? 0 : text.trim().length;
  return [Math.min(from + first, to), Math.min(from + first + length, to)];
}

function assistance(assist) {
  const complete = async (context) => {
    const word = context.matchBefore(/["{\w.-]+/);
    if (!word && !context.explicit) return null;
    const answer = await assist(context.state.doc.toString(), context.pos).catch(() => null);
    if (!answer?.completions.length) return null;
    return { from: answer.from, options: answer.completions, validFor: /^[\w.-]*$/ };
  };
  const hover = hoverTooltip(async (view, pos) => {
    const answer = await assist(view.state.doc.toString(), pos).catch(() => null);
    // A tooltip that appears after the mouse has left stays, and may cover a button.
    if (!answer?.hover || !view.dom.matches(":hover")) return null;
    return { pos: answer.hover.from, end: answer.hover.to, above: true, create() {
      const dom = document.createElement("div");
      dom.className = "cm-explained";
      dom.textContent = answer.hover.text;
      return { dom };
    } };
  });
  return [autocompletion({ override: [complete], icons: false }), hover];
}

/**
 * @param {HTMLElement} parent
 * @param {{before: string, after: string, labels: [string, string], wide: boolean, language: string}} what
 */
export function difference(parent, { before, after, labels, wide, language }) {
  const collapseUnchanged = { margin: 3, minSize: 6 };
  if (wide) {
    const side = (doc, label) => ({ doc, extensions: [...common(label, language), ...READ_ONLY] });
    return new MergeView({ a: side(before, labels[0]), b: side(after, labels[1]), parent, collapseUnchanged });
  }
  return new EditorView({ doc: after, parent, extensions: [
    ...common(`${labels[0]} and ${labels[1]}`, language), ...READ_ONLY,
    unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged }),
  ] });
}
