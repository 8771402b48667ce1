/** The conversation of the Playground. It goes on while another page is looked at, and ends with the session. */
import { stream } from "../api.js";

/**
 * @typedef {{role: "user" | "assistant", text: string, reasoning?: string, state?: "answering" | "stopped" | "cut" | "failed",
 *   run?: string, error?: Error}} Turn `run`: the id of its run
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

  /** @param {Partial<Conversation>} values */
  set(values) {
    Object.assign(this, values);
    for (const watcher of this.#watchers) watcher();
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.set({ turns: [], running: null });
  }

  /** Send the last question again, in place of its failed answer. */
  again = () => {
    const at = this.turns.findLastIndex(({ role }) => role === "user");
    this.set({ draft: this.turns[at].text, turns: this.turns.slice(0, at) });
    this.send();
  };

  /** Send what is in `draft`. */
  async send() {
    const question = this.draft.trim();
    if (!question || this.running) return;
    /** @type {Turn} */
    const asked = { role: "user", text: question };
    /** @type {Turn} */
    const answer = { role: "assistant", text: "", reasoning: "", state: "answering" };
    // A question without an answer is not part of the conversation.
    const turns = this.turns.filter((turn, n) => turn.text && (turn.role === "assistant" || this.turns[n + 1]?.text));
    const running = new AbortController();
    this.set({ draft: "", running, turns: [...this.turns, asked, answer] });
    try {
      await this.#receive(answer, [...turns, asked], running.signal);
      if (answer.state === "answering") delete answer.state;
    } catch (error) {
      Object.assign(answer, running.signal.aborted ? { state: "stopped" } : { state: "failed", error });
    }
    this.set({ running: this.running === running ? null : this.running });
  }

  /** @param {Turn} answer @param {Turn[]} turns @param {AbortSignal} signal */
  async #receive(answer, turns, signal) {
    const messages = turns.map(({ role, text }) => ({ role, content: text }));
    if (this.system.trim()) messages.unshift({ role: "system", content: this.system });
    const discussion = this.discussion.trim();
    const body = { model: this.model, messages, stream: true, ...discussion && { discussion } };
    const opened = (response) => {
      answer.run = response.headers.get("X-Request-Id") ?? undefined;
      this.set({});
    };
    for await (const { data } of stream("playground", body, signal, opened)) {
      if (data === "[DONE]") return;
      if (data?.error) throw new Error(data.error.message ?? String(data.error));
      const choice = data?.choices?.[0];
      answer.text += choice?.delta?.content ?? "";
      answer.reasoning += choice?.delta?.reasoning_content ?? "";
      if (choice?.finish_reason === "length") answer.state = "cut";
      this.set({});
    }
  }
}

/** @type {{session: object | null, conversation: Conversation}} */
let kept = { session: null, conversation: new Conversation() };

/** Return the conversation of a session: another one never sees it. @param {object} session */
export function conversationOf(session) {
  if (kept.session !== session) {
    kept.conversation.clear();
    kept = { session, conversation: new Conversation() };
  }
  return kept.conversation;
}
