/** Tables, and terms with their values. */
import { html } from "../html.js";

/**
 * A table. On a phone each row is a card, in which every value stands beside the name of its column.
 * @param {{label: string, rows: any[], columns: {[name: string]: (row: any) => any}, numbers?: string[],
 *   keyOf?: (row: any) => string, lookOf?: (row: any) => string, look?: string}} props `look`: classes
 */
export function Table({ label, rows, columns, numbers = [], keyOf, lookOf, look = "" }) {
  const names = Object.keys(columns);
  const kind = (name) => (numbers.includes(name) ? "num" : "");
  return html`<table class=${`cards ${look}`} role="table" aria-label=${label}>
    <thead role="rowgroup"><tr role="row">${names.map((name) => (name
      ? html`<th role="columnheader" scope="col" class=${kind(name)}>${name}</th>` : html`<td role="cell"></td>`))}</tr></thead>
    <tbody role="rowgroup">${rows.map((row, n) => html`<tr role="row" key=${keyOf?.(row) ?? n} class=${lookOf?.(row)}>${names.map((name) => html`
      <td role="cell" data-label=${name} class=${kind(name)}><div>${columns[name](row)}</div></td>`)}</tr>`)}</tbody>
  </table>`;
}

/**
 * Terms with what is known of each; what nobody knows has no line.
 * @param {{rows: [term: string, value: any, look?: string][], look?: string}} props
 */
export function Facts({ rows, look = "facts" }) {
  return html`<dl class=${look}>${rows.filter(([, value]) => value != null && value !== "")
    .map(([term, value, kind]) => html`<div key=${term} class=${kind}><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;
}
