/** The messages and settings in a payload, whichever kind of server it was sent to. Pure functions. */
import { asText, bytes, json } from "../../parts/format.js";

/** @typedef {{role: string, text: string}} Message */

// What the messages are in, by kind of server; everything else in a payload is a setting.
const CONVERSATION = ["messages", "system", "prompt", "input", "suffix"];

/** @param {any} payload @returns {Message[]} */
export function messages(payload) {
  if (payload == null) return [];
  if (typeof payload === "string") return [{ role: "prompt", text: payload }];
  const found = [];
  if (payload.system != null) found.push({ role: "system", text: contentText(payload.system) });
  for (const message of payload.messages ?? []) found.push({ role: message.role ?? "message", text: messageText(message) });
  if (payload.prompt != null) found.push({ role: "prompt", text: contentText(payload.prompt) });
  if (payload.input != null) {
    for (const input of [payload.input].flat()) found.push({ role: input?.role ?? "input", text: contentText(input?.content ?? input) });
  }
  return found;
}

/** @param {any} payload @returns {[string, any][]} */
export function settings(payload) {
  if (payload == null || typeof payload !== "object") return [];
  return Object.entries(payload).filter(([name]) => !CONVERSATION.includes(name));
}

function messageText(message) {
  const parts = [contentText(message.content ?? message.text ?? "")];
  for (const image of message.images ?? []) parts.push(imageText(image));
  if (message.tool_calls) parts.push(`tool calls: ${json(message.tool_calls)}`);
  if (message.tool_call_id) parts.unshift(`result of ${message.tool_call_id}:`);
  return parts.filter(Boolean).join("\n");
}

function contentText(content) {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map(partText).join("\n");
  return content == null ? "" : json(content);
}

function partText(part) {
  if (typeof part === "string") return part;
  if (typeof part?.text === "string") return part.text;
  if (part?.image || /image/.test(part?.type ?? "")) return imageText(part);
  return json(part);
}

/** Images are not recorded: only what kind they were, and how large. */
function imageText(image) {
  const known = [image, image?.image_url, image?.source, image?.image_url?.url].find((one) => one?.image && one?.bytes != null);
  return known ? `[image, ${known.image}, ${bytes(known.bytes)}]` : "[image]";
}

/**
 * The request as a command. A key is never recorded, so the reader fills in theirs.
 * @param {import("../../parts/spans.js").Span} attempt @param {object} payload
 */
export function curl({ attributes }, payload) {
  const quote = (text) => `'${asText(text).replaceAll("'", "'\\''")}'`;
  return [`curl ${quote(attributes["url.full"])}`, `-H ${quote("Content-Type: application/json")}`, `-d ${quote(JSON.stringify(payload))}`].join(" \\\n  ");
}
