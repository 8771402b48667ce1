// The npm package "openai" over the Responses API; streams go through its helper stream().
import OpenAI from "openai";

const words = (parts) => parts.filter((part) => part.type === "output_text").map((part) => part.text);

function said(response, pieces) {
  if (response.status === "failed") throw new Error(`${response.error.code}: ${response.error.message}`);
  const calls = response.output.filter((item) => item.type === "function_call");
  const texts = response.output.filter((item) => item.type === "message").flatMap((item) => words(item.content));
  return { pieces: pieces ?? texts, calls: calls.map((call) => [call.name, JSON.parse(call.arguments)]),
           finish: response.status, tokens: [response.usage.input_tokens, response.usage.output_tokens] };
}

function conversation(turns, image) {
  const input = turns.map(([role, content]) => ({ role, content }));
  if (image) {
    const last = input.at(-1);
    last.content = [{ type: "input_text", text: last.content },
                    { type: "input_image", detail: "auto", image_url: `data:image/png;base64,${image}` }];
  }
  return input;
}

export class OpenAiResponsesClient {
  constructor(url) {
    this.client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-any", maxRetries: 0 });
  }

  async chat({ model, turns, image }) {
    return said(await this.client.responses.create({ model, input: conversation(turns, image) }));
  }

  async stream({ model, turns }) {
    const pieces = [];
    const stream = this.client.responses.stream({ model, input: conversation(turns) });
    stream.on("response.output_text.delta", (event) => pieces.push(event.delta));
    return said(await stream.finalResponse(), pieces);
  }

  async use_tool({ model, question, tool, results, stream }) {
    const tools = [{ type: "function", strict: false, ...tool.function }];
    const input = [{ role: "user", content: question }];
    const first = await this.#ask({ model, input, tools }, stream);
    input.push(...first.output);
    for (const call of first.output.filter((item) => item.type === "function_call")) {
      input.push({ type: "function_call_output", call_id: call.call_id,
                   output: results[JSON.parse(call.arguments).city] });
    }
    return [said(first), said(await this.#ask({ model, input, tools }, stream))];
  }

  #ask(body, stream) {
    return stream ? this.client.responses.stream(body).finalResponse() : this.client.responses.create(body);
  }

  async break_off({ model, question }) {
    const stream = await this.client.responses.create({ model, input: question, stream: true });
    for await (const event of stream) if (event.type === "response.output_text.delta") return event.delta;
  }

  async give_up({ model, question, seconds }) {
    await this.client.responses.create({ model, input: question }, { timeout: seconds * 1000 });
  }

  // Three turns, each going on from the last; returns their texts.
  async go_on({ model, questions }) {
    const texts = [];
    let previous;
    for (const input of questions) {
      const response = await this.client.responses.create({ model, input, previous_response_id: previous });
      previous = response.id;
      texts.push(response.output_text);
    }
    return texts;
  }

  async embed({ texts }) {
    const answer = await this.client.embeddings.create({ model: "any", input: texts });
    return answer.data.map((entry) => entry.embedding);
  }

  // The name of the class and the status of what the package throws.
  async fail(body) {
    try {
      await this.client.responses.create(body);
    } catch (error) {
      return [error.constructor.name, error.status, error.param];
    }
  }
}
