// The AI SDK's batches and OpenAI's own client against `dropbatch serve`: prints what came back.
import { createOpenAI } from "@ai-sdk/openai";
import {
  experimental_cancelBatch as cancelBatch,
  experimental_getBatchResults as getBatchResults,
  experimental_getBatchStatus as getBatchStatus,
  experimental_listBatches as listBatches,
  experimental_startBatch as startBatch,
} from "ai";
import OpenAI, { toFile } from "openai";

const [baseURL, model] = process.argv.slice(2);
const OVER = new Set(["completed", "failed", "cancelled", "expired"]);

async function ended(read) {
  for (let second = 0; second < 120; second++) {
    const batch = await read();
    if (OVER.has(batch.status)) return batch;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  throw new Error("The batch is not over after two minutes.");
}

async function aiSdk() {
  const provider = createOpenAI({ baseURL, apiKey: "none" });
  const request = { type: "text", model, maxOutputTokens: 50 };
  const requests = ["a", "b"].map((id) => ({ ...request, id, prompt: `Hello ${id}` }));
  const batch = await startBatch({ provider, requests });
  const { status } = await ended(() => getBatchStatus({ provider, batch }));
  const texts = {};
  for await (const item of getBatchResults({ provider, batch })) texts[item.id] = item.text !== "";
  const { batches } = await listBatches({ provider, limit: 1 });
  const other = await startBatch({ provider, requests });
  await cancelBatch({ provider, batch: other });
  return { status, texts, listed: batches[0].id === batch.id };
}

async function official() {
  const client = new OpenAI({ baseURL, apiKey: "none" });
  const url = "/v1/chat/completions";
  const body = { model: "gpt-4o", messages: [{ role: "user", content: "Hello" }] };
  const line = JSON.stringify({ custom_id: "r0", method: "POST", url, body });
  const file = await client.files.create({
    file: await toFile(Buffer.from(`${line}\n`), "july.jsonl"),
    purpose: "batch",
  });
  const made = await client.batches.create({
    input_file_id: file.id,
    endpoint: url,
    completion_window: "24h",
    output_expires_after: { anchor: "created_at", seconds: 3600 },
  });
  const batch = await ended(() => client.batches.retrieve(made.id));
  const answers = await (await client.files.content(batch.output_file_id)).text();
  const refused = await client.responses.create({ model, input: "hi" }).catch((error) => error);
  return { status: batch.status, answers: answers.trim().split("\n").length, refused: refused.code };
}

console.log(JSON.stringify({ aiSdk: await aiSdk(), official: await official() }));
