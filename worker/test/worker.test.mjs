// The Worker in real workerd, behind workerd's own AI binding, whose backend answers as the test says.

import assert from "node:assert/strict";
import { once } from "node:events";
import { request } from "node:http";
import { after, before, test } from "node:test";
import { start } from "../local.mjs";
import { ENVIRONMENT, MODEL, SECRET, backend, call, submit } from "./calls.mjs";

// Says what it was given, and how many calls were ever under way at once; or answers as the first request asks for.
const BACKEND = backend(`
  const model = call.headers.get("cf-consn-model-id");
  if (first.wait) await scheduler.wait(first.wait);
  if (first.reply) return new Response(first.body ?? "", first.reply);
  if (first.size) return new Response('{"responses":"' + "x".repeat(first.size) + '"}', { headers: { "content-type": "application/json" } });
  return Response.json({ model, inputs: inputs.requests ? inputs.requests.length : inputs, options, most });
`);

let worker, older;
before(async () => {
  worker = await start({ environment: ENVIRONMENT, backend: BACKEND });
  older = await start({ environment: ENVIRONMENT, backend: BACKEND, raw: false });
});
after(() => Promise.all([worker.stop(), older.stop()]));

const JSON_HEADERS = { "content-type": "application/json" };
/** A submit that the backend answers with this body, status and headers. */
const answered = ({ url }, body, status = 200, headers = JSON_HEADERS) => submit(url, [{ body, reply: { status, headers } }]);

test("a submit reaches Workers AI as a queued batch, and its bare body comes back", async () => {
  const reply = await submit(worker.url, [{ text: "one" }, { text: "two" }]);
  assert.equal(reply.status, 200);
  const options = { queueRequest: true, returnRawResponse: true };
  assert.deepEqual(await reply.json(), { model: MODEL, inputs: 2, options, most: 1 });
});

test("a poll hands over the request_id and nothing else", async () => {
  const reply = await call(worker.url, `run/${MODEL}`, { request_id: "abc", requests: [1] });
  const body = await reply.json();
  assert.deepEqual([body.inputs, body.options], [{ request_id: "abc" }, { returnRawResponse: true }]);
});

test("a binding without raw responses gives the same bodies", async () => {
  const submitted = await (await submit(older.url, [{}])).json();
  const polled = await (await call(older.url, `run/${MODEL}`, { request_id: "abc" })).json();
  assert.deepEqual([submitted.inputs, submitted.options], [1, { queueRequest: true }]);
  assert.deepEqual([polled.inputs, polled.options], [{ request_id: "abc" }, {}]);
});

for (const headers of [{}, { authorization: "Bearer wrong" }, { authorization: SECRET }, { authorization: "Bearer " }]) {
  test(`without the secret nothing is run: ${JSON.stringify(headers)}`, async () => {
    const reply = await call(worker.url, `run/${MODEL}`, { requests: [{}] }, headers);
    assert.equal(reply.status, 401);
    assert.equal((await reply.json()).errors[0].code, 10000);
  });
}

for (const [status, type, body] of [
  [200, "application/json; charset=utf-8", '{"status":"queued","request_id":"r"}'],
  [202, "application/json", '{"result":{"request_id":"r"},"success":true}'],
  [404, "application/json", '{"internalCode":7003,"description":"unknown"}'],
  [429, "text/plain", "slow down"],
  [403, "text/html", "<html>blocked</html>"],
  [500, "application/json", '{"errors":[{"code":5001,"message":"failed"}]}'],
]) {
  test(`a reply passes with its status, type, retry-after and every byte: ${status} ${body}`, async () => {
    const reply = await answered(worker, body, status, { "content-type": type, "retry-after": "17" });
    const { headers } = reply;
    assert.deepEqual([reply.status, headers.get("content-type"), headers.get("retry-after")], [status, type, "17"]);
    assert.equal(await reply.text(), body);
  });
}

test("numbers and texts pass as they were written", async () => {
  const body = '{ "responses" :[{"id":0,"result":[1.0,1e400,12345678901234567890,"\\u00e9\\ud800"]}]}';
  assert.equal(await (await answered(worker, body)).text(), body);
});

test("a reply of 60 MB passes, whatever a Worker's memory", async () => {
  const reply = await submit(worker.url, [{ size: 60_000_000 }]);
  assert.equal((await reply.arrayBuffer()).byteLength, 60_000_016);
});

for (const [code, status] of [[3036, 429], [3040, 429], [3021, 429], [5007, 400], [5035, 403], [3042, 404], [3006, 413], [3007, 408], [8007, 400], [5001, 500]]) {
  test(`an error ${code} that the binding throws comes back as the API's own, with HTTP ${status}`, async () => {
    const body = JSON.stringify({ internalCode: code, description: "AiError: what it says" });
    const reply = await answered(older, body, 500);
    assert.equal(reply.status, status);
    assert.deepEqual(await reply.json(), { success: false, errors: [{ code, message: "AiError: what it says" }] });
  });
}

test("an error without a code is a 502 without JSON: nobody knows whether the batch was accepted", async () => {
  const reply = await answered(older, "<html>Bad gateway</html>", 502, {});
  assert.equal(reply.status, 502);
  assert.doesNotMatch(await reply.text(), /[{}]/);
});

test("a long error text is cut, because it may quote a prompt", async () => {
  const reply = await answered(older, JSON.stringify({ internalCode: 5006, description: "x".repeat(5_000) }), 400);
  assert.equal((await reply.json()).errors[0].message.length, 500);
});

test("a body that an older binding does not parse passes too", async () => {
  const body = '{"status":"queued","request_id":"r"}';
  assert.equal(await (await answered(older, body, 200, { "content-type": "application/json; charset=utf-8" })).text(), body);
});

test("a body of 10,000,000 bytes is refused before it is read", async () => {
  // Only the head is sent: while a body is on its way, the refusal would race with a broken connection.
  const headers = { authorization: `Bearer ${SECRET}`, "content-length": 10_000_000 };
  const asked = request(new URL(`run/${MODEL}`, worker.url), { method: "POST", headers });
  asked.on("error", () => {}); // The connection ends before the body that was announced.
  asked.flushHeaders();
  const [reply] = await once(asked, "response");
  assert.equal(reply.statusCode, 413);
  const [body] = await once(reply, "data");
  assert.equal(JSON.parse(body).errors[0].code, 3006);
  asked.destroy();
});

test("an object that is larger than the Worker can hold is refused, and the next one is passed on", async () => {
  const large = await submit(older.url, [{ size: 20_000_000 }]);
  assert.equal(large.status, 413);
  assert.equal((await large.json()).errors[0].code, 3006);
  const fitting = await submit(older.url, [{ size: 19_999_900 }]);
  assert.equal(fitting.status, 200);
  assert.equal((await fitting.json()).responses.length, 19_999_900);
});

for (const [body, code] of [["{", 3003], ["[]", 5006], ["null", 5006], ['{"requests":{}}', 5006], ['{"request_id":7}', 5006]]) {
  test(`the body ${body} is refused with ${code}`, async () => {
    const reply = await call(worker.url, `run/${MODEL}`, body);
    assert.equal(reply.status, 400);
    assert.equal((await reply.json()).errors[0].code, code);
  });
}

for (const path of ["/", "/run/", "/run/gpt-4o", "/run/@cf/a/b/../../../c", "/run/@cf/a/b%20c"]) {
  test(`there is nothing at ${path}`, async () => {
    assert.equal((await (await call(worker.url, path, { requests: [] })).json()).errors[0].code, 7000);
  });
}

test("one batch is in memory at a time; others wait for their turn", async () => {
  for (const { url } of [worker, older]) {
    const replies = await Promise.all([1, 2, 3, 4].map(() => submit(url, [{ wait: 100 }])));
    assert.deepEqual(replies.map((reply) => reply.status), [200, 200, 200, 200]);
    assert.equal((await (await submit(url, [{}])).json()).most, 1);
  }
});

test("the free check needs the secret, and runs nothing", async () => {
  const good = await fetch(new URL("check", worker.url), { headers: { authorization: `Bearer ${SECRET}` } });
  assert.deepEqual([good.status, await good.json()], [200, { success: true }]);
  assert.equal((await fetch(new URL("check", worker.url))).status, 401);
});
