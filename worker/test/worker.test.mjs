// The Worker in real workerd, with a binding that answers as the test says.

import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import { after, before, test } from "node:test";
import { start } from "../local.mjs";

const MODEL = "@cf/baai/bge-small-en-v1.5";
const SECRET = "a shared secret";

// Echoes what it was given, throws what the input asks for, and says how many calls were ever under way at once.
const BINDING = `
import { WorkerEntrypoint } from "cloudflare:workers";
let now = 0, most = 0;
export class Ai extends WorkerEntrypoint {
  async run(model, inputs, options) {
    most = Math.max(most, ++now);
    try {
      const first = inputs.requests?.[0] ?? {};
      if (first.wait) await scheduler.wait(first.wait);
      if (first.fail) throw new Error(first.fail);
      if (first.size) return { responses: "x".repeat(first.size) };
      return { model, inputs: inputs.requests ? inputs.requests.length : inputs, options: options ?? null, most };
    } finally {
      now--;
    }
  }
}
export default { fetch: () => new Response(null, { status: 404 }) };
`;

let worker, url;
before(async () => {
  worker = start({ secret: SECRET, binding: BINDING });
  url = String(await worker.ready);
});
after(() => worker.dispose());

const call = (path, body, headers = { authorization: `Bearer ${SECRET}` }) =>
  fetch(new URL(path, url), { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body), headers });
const submit = (requests) => call(`/run/${MODEL}?queueRequest=true`, { requests });

test("a submit reaches the binding as a queued batch, and its bare body comes back", async () => {
  const reply = await submit([{ text: "one" }, { text: "two" }]);
  assert.equal(reply.status, 200);
  assert.deepEqual(await reply.json(), { model: MODEL, inputs: 2, options: { queueRequest: true }, most: 1 });
});

test("a poll hands over the request_id and nothing else", async () => {
  const reply = await call(`/run/${MODEL}`, { request_id: "abc", requests: [1] });
  const body = await reply.json();
  assert.deepEqual([body.inputs, body.options], [{ request_id: "abc" }, null]);
});

for (const headers of [{}, { authorization: "Bearer wrong" }, { authorization: SECRET }, { authorization: "Bearer " }]) {
  test(`without the secret nothing is run: ${JSON.stringify(headers)}`, async () => {
    const reply = await call(`/run/${MODEL}`, { requests: [{}] }, headers);
    assert.equal(reply.status, 401);
    assert.equal((await reply.json()).errors[0].code, 10000);
  });
}

for (const [code, status] of [[3036, 429], [3040, 429], [3021, 429], [5007, 400], [5035, 403], [3042, 404], [3006, 413], [3007, 408], [8007, 400], [5001, 500]]) {
  test(`the binding's error ${code} comes back as the API's own, with HTTP ${status}`, async () => {
    const reply = await submit([{ fail: `${code}: AiError: what it says` }]);
    assert.equal(reply.status, status);
    assert.deepEqual(await reply.json(), { success: false, errors: [{ code, message: "AiError: what it says" }] });
  });
}

test("an error without a code is a 502 without JSON: nobody knows whether the batch was accepted", async () => {
  const reply = await submit([{ fail: "Network connection lost." }]);
  assert.equal(reply.status, 502);
  assert.doesNotMatch(await reply.text(), /[{}]/);
});

test("a long error text is cut, because it may quote a prompt", async () => {
  const reply = await submit([{ fail: `5006: ${"x".repeat(5_000)}` }]);
  assert.equal((await reply.json()).errors[0].message.length, 500);
});

test("a body of 10,000,000 bytes is refused before it is read", async () => {
  // Only the head is sent: while a body is on its way, the refusal would race with a broken connection.
  const headers = { authorization: `Bearer ${SECRET}`, "content-length": 10_000_000 };
  const asked = request(new URL(`/run/${MODEL}`, url), { method: "POST", headers });
  asked.on("error", () => {}); // The connection ends before the body that was announced.
  asked.flushHeaders();
  const [reply] = await once(asked, "response");
  assert.equal(reply.statusCode, 413);
  const [body] = await once(reply, "data");
  assert.equal(JSON.parse(body).errors[0].code, 3006);
  asked.destroy();
});

test("a reply that is larger than the Worker can hold is refused, and the next one is passed on", async () => {
  const large = await submit([{ size: 20_000_000 }]);
  assert.equal(large.status, 413);
  assert.equal((await large.json()).errors[0].code, 3006);
  const fitting = await submit([{ size: 19_999_900 }]);
  assert.equal(fitting.status, 200);
  assert.equal((await fitting.json()).responses.length, 19_999_900);
});

for (const [body, code] of [["{", 3003], ["[]", 5006], ["null", 5006], ['{"requests":{}}', 5006], ['{"request_id":7}', 5006]]) {
  test(`the body ${body} is refused with ${code}`, async () => {
    const reply = await call(`/run/${MODEL}`, body);
    assert.equal(reply.status, 400);
    assert.equal((await reply.json()).errors[0].code, code);
  });
}

for (const path of ["/", "/run/", "/run/gpt-4o", "/run/@cf/a/b/../../../c", "/run/@cf/a/b%20c"]) {
  test(`there is nothing at ${path}`, async () => {
    assert.equal((await (await call(path, { requests: [] })).json()).errors[0].code, 7000);
  });
}

test("one batch is in memory at a time; others wait for their turn", async () => {
  const replies = await Promise.all([1, 2, 3, 4].map(() => submit([{ wait: 100 }])));
  assert.deepEqual(replies.map((reply) => reply.status), [200, 200, 200, 200]);
  assert.equal(Math.max(...(await Promise.all(replies.map((reply) => reply.json()))).map((body) => body.most)), 1);
});

test("the free check needs the secret, and runs nothing", async () => {
  const good = await fetch(new URL("/check", url), { headers: { authorization: `Bearer ${SECRET}` } });
  assert.deepEqual([good.status, await good.json()], [200, { success: true }]);
  assert.equal((await fetch(new URL("/check", url))).status, 401);
});
