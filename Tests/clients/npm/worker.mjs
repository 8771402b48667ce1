// Runs the npm clients for the tests: one JSON request per line of stdin, one JSON reply per line of stdout.
//   {"id": 1, "client": "openai", "url": "http://127.0.0.1:5000", "method": "chat", "arguments": {...}}
//   {"id": 1, "value": ...}   or   {"id": 1, "error": "name and message"}
// It ends when stdin does. What the packages themselves print goes to stderr.
import { createInterface } from "node:readline";
import { AiAnthropicClient, AiOllamaClient, AiOpenAiClient } from "./ai_clients.mjs";
import { AnthropicClient } from "./anthropic_client.mjs";
import { LangChainOllamaClient, LangChainOpenAiClient } from "./langchain_clients.mjs";
import { OllamaClient } from "./ollama_client.mjs";
import { OpenAiClient } from "./openai_client.mjs";
import { OpenAiResponsesClient } from "./openai_responses_client.mjs";

console.log = console.error;

const kinds = {
  openai: OpenAiClient, ollama: OllamaClient, "openai-responses": OpenAiResponsesClient, anthropic: AnthropicClient,
  "ai-openai": AiOpenAiClient, "ai-anthropic": AiAnthropicClient, "ai-ollama": AiOllamaClient,
  "langchain-ollama": LangChainOllamaClient, "langchain-openai": LangChainOpenAiClient };
const clients = new Map();

function client(kind, url) {
  const key = `${kind} ${url}`;
  if (!clients.has(key)) clients.set(key, new kinds[kind](url));
  return clients.get(key);
}

async function answer({ id, client: kind, url, method, arguments: given }) {
  try {
    return { id, value: await client(kind, url)[method](given) };
  } catch (error) {
    return { id, error: `${error.name}: ${error.message}` };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  answer(JSON.parse(line)).then((reply) => process.stdout.write(`${JSON.stringify(reply)}\n`));
}
process.exit(0);
