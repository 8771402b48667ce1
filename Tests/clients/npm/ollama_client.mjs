// The npm package "ollama".
import { Ollama } from "ollama";

const end = (part) => ({ finish: part.done_reason, tokens: [part.prompt_eval_count, part.eval_count] });

function said(parts) {
  const calls = parts.flatMap((part) => part.message.tool_calls ?? []);
  return { pieces: parts.map((part) => part.message.content),
           calls: calls.map((call) => [call.function.name, call.function.arguments]), ...end(parts.at(-1)) };
}

const generated = (parts) => ({ pieces: parts.map((part) => part.response), ...end(parts.at(-1)) });

async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

export class OllamaClient {
  constructor(url) {
    this.url = url;
    this.client = new Ollama({ host: url });
  }

  async models() {
    const loaded = (await this.client.ps()).models.map((entry) => entry.model);
    const names = [];
    for (const { model } of (await this.client.list()).models) {
      const { capabilities } = await this.client.show({ model });
      const able = capabilities.includes("tools") && capabilities.includes("vision");
      if (able && loaded.includes(model)) names.push(model.replace(/:latest$/, ""));
    }
    return names;
  }

  async chat({ model, turns, image }) {
    const messages = turns.map(([role, content]) => ({ role, content }));
    if (image) messages.at(-1).images = [Buffer.from(image, "base64")];
    return said([await this.client.chat({ model, messages })]);
  }

  async stream({ model, turns }) {
    const messages = turns.map(([role, content]) => ({ role, content }));
    return said(await collect(await this.client.chat({ model, messages, stream: true })));
  }

  async complete({ model, prompt }) {
    return generated([await this.client.generate({ model, prompt })]);
  }

  async complete_with_image({ model, prompt, image }) {
    return generated([await this.client.generate({ model, prompt, images: [image] })]);
  }

  async stream_completion({ model, prompt }) {
    return generated(await collect(await this.client.generate({ model, prompt, stream: true })));
  }

  async use_tool({ model, question, tool, results, stream }) {
    const messages = [{ role: "user", content: question }];
    const first = await this.#askWithTool({ model, messages, tools: [tool] }, stream);
    const calls = first.flatMap((part) => part.message.tool_calls ?? []);
    messages.push({ role: "assistant", content: first.map((part) => part.message.content).join(""),
                    tool_calls: calls });
    for (const { function: { name, arguments: { city } } } of calls) {
      messages.push({ role: "tool", tool_name: name, content: results[city] });
    }
    return [said(first), said(await this.#askWithTool({ model, messages, tools: [tool] }, stream))];
  }

  async #askWithTool(body, stream) {
    return stream ? collect(await this.client.chat({ ...body, stream: true })) : [await this.client.chat(body)];
  }

  async break_off({ model, question }) {
    const stream = await this.client.chat({ model, messages: [{ role: "user", content: question }], stream: true });
    const parts = stream[Symbol.asyncIterator]();
    for (;;) {
      const piece = (await parts.next()).value.message.content;
      if (piece) {
        stream.abort();
        return piece;
      }
    }
  }

  async give_up({ model, question, seconds }) {
    const impatient = new Ollama({
      host: this.url,
      fetch: (address, options) => fetch(address, { ...options, signal: AbortSignal.timeout(seconds * 1000) }) });
    await impatient.chat({ model, messages: [{ role: "user", content: question }] });
  }
  async embed({ texts }) {
    return (await this.client.embed({ model: "any", input: texts })).embeddings;
  }
}
