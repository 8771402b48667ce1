// The npm package "@anthropic-ai/sdk"; streams go through its helper stream(), tool loops through its tool runner.
import Anthropic from "@anthropic-ai/sdk";

const max_tokens = 1000;

function said(message, pieces) {
  const calls = message.content.filter((block) => block.type === "tool_use");
  const texts = message.content.filter((block) => block.type === "text").map((block) => block.text);
  return { pieces: pieces ?? texts, calls: calls.map((call) => [call.name, call.input]),
           finish: message.stop_reason, tokens: [message.usage.input_tokens, message.usage.output_tokens] };
}

function conversation(turns, image) {
  const messages = turns.map(([role, content]) => ({ role, content }));
  if (image) {
    const last = messages.at(-1);
    last.content = [{ type: "text", text: last.content },
                    { type: "image", source: { type: "base64", media_type: "image/png", data: image } }];
  }
  return messages;
}

const offered = ({ function: { name, description, parameters } }) => ({ name, description, input_schema: parameters });

export class AnthropicClient {
  constructor(url) {
    this.client = new Anthropic({ baseURL: url, apiKey: "sk-any", maxRetries: 0 });
  }

  async models() {
    const names = [];
    for await (const model of this.client.models.list()) names.push((await this.client.models.retrieve(model.id)).id);
    return names;
  }

  async chat({ model, turns, image }) {
    return said(await this.client.messages.create({ model, max_tokens, messages: conversation(turns, image) }));
  }

  async stream({ model, turns }) {
    const pieces = [];
    const stream = this.client.messages.stream({ model, max_tokens, messages: conversation(turns) });
    stream.on("text", (piece) => pieces.push(piece));
    return said(await stream.finalMessage(), pieces);
  }

  async use_tool({ model, question, tool, results, stream }) {
    const messages = [{ role: "user", content: question }];
    const first = await this.#ask({ model, max_tokens, messages, tools: [offered(tool)] }, stream);
    const uses = first.content.filter((block) => block.type === "tool_use");
    messages.push({ role: "assistant", content: first.content }, { role: "user", content: uses.map(
      (use) => ({ type: "tool_result", tool_use_id: use.id, content: results[use.input.city] })) });
    return [said(first), said(await this.#ask({ model, max_tokens, messages, tools: [offered(tool)] }, stream))];
  }

  #ask(body, stream) {
    return stream ? this.client.messages.stream(body).finalMessage() : this.client.messages.create(body);
  }

  async break_off({ model, question }) {
    const stream = await this.client.messages.create(
      { model, max_tokens, messages: [{ role: "user", content: question }], stream: true });
    for await (const event of stream) if (event.type === "content_block_delta") return event.delta.text;
  }

  async give_up({ model, question, seconds }) {
    await this.client.messages.create(
      { model, max_tokens, messages: [{ role: "user", content: question }] }, { timeout: seconds * 1000 });
  }

  // The package's own loop over tool calls.
  async run_tools({ model, question, tool, results, stream }) {
    const run = ({ city }) => results[city];
    const runner = this.client.beta.messages.toolRunner({
      model, max_tokens, stream, messages: [{ role: "user", content: question }],
      tools: [{ ...offered(tool), type: "custom", run, parse: (input) => input }] });
    return said(await runner.runUntilDone());
  }

  async fail(body) {
    try {
      await this.client.messages.create(body);
    } catch (error) {
      return [error.constructor.name, error.status, error.error?.error?.type];
    }
  }
}
