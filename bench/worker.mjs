// CPU time that workerd needs for a call of the Worker: `node bench/worker.mjs`, after `make demo TRANSPORT=worker` has
// installed the Worker's packages. Calls with and without raw responses take turns, and Workers AI is a server outside
// of workerd, with the same bytes for each. The table is in docs/transports.md.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { start } from "../worker/local.mjs";

const ROUNDS = 5;
const CALLS = 20;
const MODEL = "@cf/baai/bge-small-en-v1.5";
const TICK_MS = 10;

const vector = () => Array.from({ length: 384 }, () => Math.random() * 2 - 1);
const answer = (id) => ({ id, success: true, external_reference: `row-${id}`, result: { shape: [1, 384], data: [vector()] } });
const ANSWERS = JSON.stringify({ responses: Array.from({ length: 500 }, (_, id) => answer(id)) });
const record = (bytes) => (_, id) => ({ text: "word ".repeat(bytes / 5), external_reference: `row-${id}` });
const batch = (length, bytes) => JSON.stringify({ requests: Array.from({ length }, record(bytes)) });

const CALLED = {
  "poll of a pending batch": ['{"request_id":"pending"}'],
  [`poll with 500 embeddings, ${(ANSWERS.length / 1e6).toFixed(1)} MB`]: ['{"request_id":"done"}'],
  "submit of 50 records, 0.05 MB": [batch(50, 1_000)],
  "submit of 500 records, 0.5 MB": [batch(500, 1_000)],
  "submit of 500 records, 2 MB": [batch(500, 4_000)],
  "submit of 500 records, 9.5 MB": [batch(500, 18_900)],
};

const upstream = createServer((request, reply) => {
  let seen = "";
  request.on("data", (chunk) => (seen = (seen + chunk).slice(0, 100)));
  request.on("end", () => {
    const bare = seen.includes('"done"') ? ANSWERS : '{"status":"queued","request_id":"r"}';
    reply.writeHead(200, { "content-type": "application/json" }).end(bare);
  });
});
await new Promise((listening) => upstream.listen(0, "127.0.0.1", listening));

const environment = { PATH: process.env.PATH, SHARED_SECRET: "s", WORKERS_AI: `127.0.0.1:${upstream.address().port}` };
const ways = {};
for (const raw of [false, true]) {
  ways[raw] = await start({ environment, raw, upstream: environment.WORKERS_AI });
}

/** Milliseconds of CPU time that a process has used. */
function cpu(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS;
}

async function measure({ url, pid }, body) {
  const before = cpu(pid);
  for (let number = 0; number < CALLS; number++) {
    const headers = { authorization: "Bearer s" };
    const reply = await fetch(`${url}run/${MODEL}`, { method: "POST", body, headers });
    await reply.arrayBuffer();
    if (reply.status !== 200) throw new Error(`HTTP ${reply.status}`);
  }
  return (cpu(pid) - before) / CALLS;
}

const spread = (values) => {
  const sorted = values.toSorted((a, b) => a - b);
  const shown = [sorted[Math.floor(sorted.length / 2)], sorted[0], sorted.at(-1)].map((value) => value.toFixed(1));
  return `${shown[0]} (${shown[1]} to ${shown[2]})`;
};

console.log("| call | raw response | object |\n| --- | --- | --- |");
for (const [name, [body]] of Object.entries(CALLED)) {
  const found = { true: [], false: [] };
  for (let round = -1; round < ROUNDS; round++) {
    for (const raw of [true, false]) {
      const milliseconds = await measure(ways[raw], body);
      if (round >= 0) found[raw].push(milliseconds); // The first round compiles the code.
    }
  }
  console.log(`| ${name} | ${spread(found.true)} | ${spread(found.false)} |`);
}
await Promise.all(Object.values(ways).map((way) => way.stop()));
upstream.close();
