// Connections that break during a call, at the caller's end and at Workers AI's: the next call is not delayed.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { start } from "../local.mjs";
import { ENVIRONMENT, backend, begin, pause, submit } from "./calls.mjs";

// Answers after `wait`, with `size` characters, or with what the server at `at` answers.
const BACKEND = backend(`
  if (first.wait) await scheduler.wait(first.wait);
  if (first.at) return await fetch(first.at);
  return Response.json({ responses: "x".repeat(first.size ?? 0) });
`);

const workers = {};
before(async () => {
  workers.raw = await start({ environment: ENVIRONMENT, backend: BACKEND });
  workers.older = await start({ environment: ENVIRONMENT, backend: BACKEND, raw: false });
});
after(() => Promise.all(Object.values(workers).map((worker) => worker.stop())));

const ENDS = { reset: (socket) => socket.resetAndDestroy(), close: (socket) => socket.destroy() };
/** How to reach each point of a call; returns its connection. */
const TIMES = {
  "its body arrives": (url) => begin(url, [{ text: "x".repeat(100_000) }], 0.5),
  "the binding runs": (url) => begin(url, [{ wait: 2_000 }]),
  "it waits for its turn": async (url) => {
    const other = submit(url, [{ wait: 1_000 }]);
    await pause(100);
    const socket = begin(url, [{}]);
    await pause(100);
    return Object.assign(socket, { other });
  },
  "its reply arrives": async (url) => {
    const socket = begin(url, [{ size: 15_000_000 }]);
    await once(socket, "data");
    return socket;
  },
};

for (const kind of ["raw", "older"]) {
  for (const [end, disconnect] of Object.entries(ENDS)) {
    for (const [time, reach] of Object.entries(TIMES)) {
      test(`${kind}: a ${end} while ${time} delays nobody`, async () => {
        const { url } = workers[kind];
        const socket = await reach(url);
        await pause(300);
        disconnect(socket);
        const began = Date.now();
        assert.equal((await submit(url, [{}])).status, 200);
        assert.ok(Date.now() - began < 4_000, `${Date.now() - began} ms`);
        await socket.other;
      });
    }
  }
}

/** The address of a server that breaks each reply after these bytes of its body; without them, before its head. */
async function broken(context, bytes) {
  const server = createServer((request, reply) => {
    if (!bytes) {
      return request.socket.resetAndDestroy();
    }
    reply.writeHead(200, { "content-type": "application/json" });
    reply.write(bytes, () => setTimeout(() => request.socket.resetAndDestroy(), 100));
  });
  context.after(() => server.close());
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${server.address().port}`;
}

for (const kind of ["raw", "older"]) {
  test(`${kind}: a connection to Workers AI that breaks before a reply is a 5xx without JSON`, async (context) => {
    const { url } = workers[kind];
    const reply = await submit(url, [{ at: await broken(context) }]);
    assert.ok(reply.status >= 500);
    assert.doesNotMatch(await reply.text(), /[{}]/);
    assert.equal((await submit(url, [{}])).status, 200);
  });

  test(`${kind}: a reply that breaks is a 502, or JSON without its end: callers see the fault in both`, async (context) => {
    const { url } = workers[kind];
    const at = await broken(context, `{"responses":["${"x".repeat(200_000)}"`);
    const reply = await submit(url, [{ at }]);
    const text = await reply.text().catch(() => "broken");
    assert.throws(() => JSON.parse(text));
    assert.equal(reply.status, kind === "raw" ? 200 : 502);
    assert.equal((await submit(url, [{}])).status, 200);
  });
}
