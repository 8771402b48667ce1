/** The conversation of the Playground. It goes on while another page is looked at, and ends with the session. */
import { stream } from "../api.js";

/**
 * @typedef {object} Turn
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {string} reasoning
 * @property {"done" | "answering" | "stopped" | "cut" | "failed"} state
 * @property {string} [run] the id of its run
 * @property {Error} [error]
 */

export class Conversation {
  model = "";
  system = "";
  discussion = "";
  draft = "";
  /** @type {Turn[]} */
  turns = [];
  /** @type {AbortController | null} */
  running = null;
  /** @type {Set<() => void>} */
  #watchers = new Set();

  /** @param {() => void} watcher @returns {() => void} which ends it */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  #changed() {
    for (const watcher of this.#watchers) watcher();
  }

  /** @param {Partial<Conversation>} values */
  set(values) {
    Object.assign(this, values);
    this.#changed();
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.set({ turns: [], running: null });
  }

  /** Send the last question again, in place of its failed answer. */
  again() {
    const question = this.turns.findLast(({ role }) => role === "user");
    this.set({ turns: this.turns.slice(0, this.turns.indexOf(question)), draft: question.text });
    return this.send();
  }

  /** Send what is in `draft`. */
  async send() {
    const question = this.draft.trim();
    if (!question || this.running) return;
    // A question without an answer is not part of the conversation.
    const earlier = this.turns.filter((turn, n) => turn.text && (turn.role === "assistant" || this.turns[n + 1]?.text));
    /** @type {Turn} */
    const answer = { role: "assistant", text: "", reasoning: "", state: "answering" };
    const running = new AbortController();
    this.set({ draft: "", running, turns: [...this.turns, { role: "user", text: question, reasoning: "", state: "done" }, answer] });
    try {
      await this.#receive(answer, [...earlier, { role: "user", text: question }], running.signal);
      if (answer.state === "answering") answer.state = "done";
    } catch (error) {
      answer.state = running.signal.aborted ? "stopped" : "failed";
      answer.error = running.signal.aborted ? undefined : error;
    }
    if (this.running === running) this.running = null;
    this.#changed();
  }

  /** @param {Turn} answer @param {{role: string, text: string}[]} turns @param {AbortSignal} signal */
  async #receive(answer, turns, signal) {
    const messages = turns.map(({ role, text }) => ({ role, content: text }));
    if (this.system.trim()) messages.unshift({ role: "system", content: this.system });
    const body = { model: this.model, messages, stream: true, ...(this.discussion.trim() && { discussion: this.discussion.trim() }) };
    const opened = (response) => {
      answer.run = response.headers.get("X-Request-Id") ?? undefined;
      this.#changed();
    };
    for await (const { data } of stream("playground", body, signal, opened)) {
      if (data === "[DONE]") return;
      if (data?.error) throw new Error(data.error.message ?? String(data.error));
      const choice = data?.choices?.[0];
      answer.text += choice?.delta?.content ?? "";
      answer.reasoning += choice?.delta?.reasoning_content ?? "";
      if (choice?.finish_reason === "length") answer.state = "cut";
      this.#changed();
    }
  }
}

/** @type {{session: object | null, conversation: Conversation}} */
const kept = { session: null, conversation: new Conversation() };

/** Return the conversation of a session: another one never sees it. @param {object} session */
export function conversationOf(session) {
  if (kept.session !== session) {
    kept.conversation.clear();
    Object.assign(kept, { session, conversation: new Conversation() });
  }
  return kept.conversation;
}
