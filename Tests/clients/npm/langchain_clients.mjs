// The npm packages "@langchain/ollama" and "@langchain/openai".
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { concat } from "@langchain/core/utils/stream";
import { ChatOllama } from "@langchain/ollama";
import { ChatOpenAI } from "@langchain/openai";

const text = (message) => (typeof message.content === "string" ? message.content : message.text);

function said(message, pieces) {
  const { finish_reason: openai, done_reason: ollama } = message.response_metadata;
  const usage = message.usage_metadata;
  return { pieces: pieces ?? [text(message)], calls: message.tool_calls.map((call) => [call.name, call.args]),
           finish: openai ?? ollama, tokens: usage && [usage.input_tokens, usage.output_tokens] };
}

async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return [parts.reduce((whole, part) => concat(whole, part)), parts.map(text)];
}

class LangChainClient {
  async chat({ model, turns, image }) {
    const url = `data:image/png;base64,${image}`;
    const messages = turns.map(([role, content], index) => ({
      role, content: image && index === turns.length - 1
        ? [{ type: "text", text: content }, { type: "image_url", image_url: { url } }] : content }));
    return said(await this.model(model).invoke(messages));
  }

  async stream({ model, turns }) {
    return said(...await collect(await this.model(model).stream(turns)));
  }

  async use_tool({ model, question, tool, results, stream }) {
    const bound = this.model(model).bindTools([tool]);
    const ask = async (messages) => (
      stream ? (await collect(await bound.stream(messages)))[0] : bound.invoke(messages));
    const messages = [new HumanMessage(question)];
    const first = await ask(messages);
    messages.push(first);
    for (const { id, name, args: { city } } of first.tool_calls) {
      messages.push(new ToolMessage({ content: results[city], tool_call_id: id, name }));
    }
    return [said(first), said(await ask(messages))];
  }
}

export class LangChainOllamaClient extends LangChainClient {
  constructor(url) {
    super();
    this.model = (model) => new ChatOllama({ model, baseUrl: url, maxRetries: 0 });
  }
}

export class LangChainOpenAiClient extends LangChainClient {
  constructor(url) {
    super();
    this.model = (model) => new ChatOpenAI({
      model, apiKey: "sk-any", maxRetries: 0, configuration: { baseURL: `${url}/v1` } });
  }
}
