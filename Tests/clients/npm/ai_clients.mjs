// The npm package "ai" with its providers "@ai-sdk/openai" (Responses, by default) and "@ai-sdk/anthropic" (Messages),
// and with "ai-sdk-ollama", which is of another author.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOllama } from "ai-sdk-ollama";
import { embedMany, generateText, isStepCount, jsonSchema, streamText, tool as makeTool } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = false;

const calls = (step) => step.toolCalls.map((call) => [call.toolName, call.input]);

function said({ text, finishReason: finish, usage }, step, pieces) {
  return { pieces: pieces ?? [text], calls: calls(step), finish, tokens: [usage.inputTokens, usage.outputTokens] };
}

function conversation(turns, image) {
  const messages = turns.map(([role, content]) => ({ role, content }));
  if (image) {
    const last = messages.at(-1);
    last.content = [{ type: "text", text: last.content },
                    { type: "file", mediaType: "image/png", data: Buffer.from(image, "base64") }];
  }
  return messages;
}

class AiClient {
  async chat({ model, turns, image }) {
    const answer = await generateText({ ...this.#common(model), messages: conversation(turns, image) });
    return said(answer, answer);
  }

  async stream({ model, turns }) {
    const pieces = [];
    let failure;
    const stream = streamText({ ...this.#common(model), messages: conversation(turns),
                                onError: ({ error }) => { failure = error; } });
    for await (const piece of stream.textStream) pieces.push(piece);
    if (failure) throw failure;
    return said({ text: await stream.text, finishReason: await stream.finishReason, usage: await stream.usage },
                { toolCalls: [] }, pieces);
  }

  // The package's own loop: it sends what came before as it likes, by default as references to stored items.
  async use_tool({ model, question, tool, results, stream }) {
    const { name, description, parameters } = tool.function;
    const offered = makeTool({ description, inputSchema: jsonSchema(parameters),
                               execute: async ({ city }) => results[city] });
    const body = { ...this.#common(model), prompt: question, tools: { [name]: offered }, stopWhen: isStepCount(3) };
    const run = stream ? streamText(body) : await generateText(body);
    if (stream) await run.consumeStream();
    const steps = await run.steps;
    if (steps.length !== 2) throw new Error(`${steps.length} steps`);
    return steps.map((step) => said(step, step));
  }

  async break_off({ model, question }) {
    const leave = new AbortController();
    const stream = streamText({ ...this.#common(model), prompt: question, abortSignal: leave.signal });
    for await (const piece of stream.textStream) {
      if (piece) {
        leave.abort();
        return piece;
      }
    }
  }

  async give_up({ model, question, seconds }) {
    await generateText({ ...this.#common(model), prompt: question,
                         abortSignal: AbortSignal.timeout(seconds * 1000) });
  }

  #common(model) {
    return { model: this.provider(model), maxRetries: 0 };
  }
}

export class AiOpenAiClient extends AiClient {
  constructor(url) {
    super();
    this.provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "sk-any" });
  }

  async embed({ texts }) {
    return (await embedMany({ model: this.provider.embedding("any"), values: texts })).embeddings;
  }
}

export class AiAnthropicClient extends AiClient {
  constructor(url) {
    super();
    this.provider = createAnthropic({ baseURL: `${url}/v1`, apiKey: "sk-any" });
  }
}

export class AiOllamaClient extends AiClient {
  constructor(url) {
    super();
    this.provider = createOllama({ baseURL: url });
  }
}
