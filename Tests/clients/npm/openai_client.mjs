// The npm package "openai"; streams go through its helper stream(), which puts the chunks together.
import OpenAI from "openai";

const tokens = (usage) => usage && [usage.prompt_tokens, usage.completion_tokens];

const calls = (message) => (message.tool_calls ?? []).map(
  (call) => [call.function.name, JSON.parse(call.function.arguments)]);

function said(completion, pieces) {
  const { message, finish_reason: finish } = completion.choices[0];
  return { pieces: pieces ?? [message.content], calls: calls(message), finish, tokens: tokens(completion.usage) };
}

function conversation(turns, image) {
  const messages = turns.map(([role, content]) => ({ role, content }));
  if (image) {
    const last = messages.at(-1);
    last.content = [{ type: "text", text: last.content },
                    { type: "image_url", image_url: { url: `data:image/png;base64,${image}` } }];
  }
  return messages;
}

export class OpenAiClient {
  constructor(url) {
    this.client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-any", maxRetries: 0 });
  }

  async models() {
    const names = [];
    for await (const model of this.client.models.list()) names.push((await this.client.models.retrieve(model.id)).id);
    return names;
  }

  async chat({ model, turns, image }) {
    return said(await this.client.chat.completions.create({ model, messages: conversation(turns, image) }));
  }

  async stream({ model, turns }) {
    const pieces = [];
    const stream = this.client.chat.completions.stream(
      { model, messages: conversation(turns), stream_options: { include_usage: true } });
    stream.on("content", (piece) => pieces.push(piece));
    return said(await stream.finalChatCompletion(), pieces);
  }

  async complete({ model, prompt }) {
    const answer = await this.client.completions.create({ model, prompt });
    const [{ text, finish_reason: finish }] = answer.choices;
    return { pieces: [text], finish, tokens: tokens(answer.usage) };
  }

  async stream_completion({ model, prompt }) {
    const result = { pieces: [] };
    const stream = await this.client.completions.create(
      { model, prompt, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      result.tokens = tokens(chunk.usage) ?? result.tokens;
      for (const choice of chunk.choices) {
        result.pieces.push(choice.text);
        result.finish = choice.finish_reason ?? result.finish;
      }
    }
    return result;
  }

  async use_tool({ model, question, tool, results, stream }) {
    const messages = [{ role: "user", content: question }];
    const first = await this.#askWithTool({ model, messages, tools: [tool] }, stream);
    const { message } = first.choices[0];
    messages.push(message);
    for (const call of message.tool_calls) {
      const { city } = JSON.parse(call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content: results[city] });
    }
    const second = await this.#askWithTool({ model, messages, tools: [tool] }, stream);
    return [said(first), said(second)];
  }

  #askWithTool(body, stream) {
    return stream ? this.client.chat.completions.stream(body).finalChatCompletion()
                  : this.client.chat.completions.create(body);
  }

  async break_off({ model, question }) {
    const stream = await this.client.chat.completions.create(
      { model, messages: [{ role: "user", content: question }], stream: true });
    for await (const chunk of stream) {
      const piece = chunk.choices[0].delta.content;
      if (piece) return piece;
    }
  }

  async give_up({ model, question, seconds }) {
    await this.client.chat.completions.create(
      { model, messages: [{ role: "user", content: question }] }, { timeout: seconds * 1000 });
  }
}
