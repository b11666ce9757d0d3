// A turn that nothing ends: it ends by itself after 120 s, and its late end takes nobody else's turn.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { start } from "../local.mjs";
import { ENVIRONMENT, backend, begin, pause, submit } from "./calls.mjs";

let worker;
before(async () => {
  const waits = backend(`await scheduler.wait(first.wait ?? 0); return Response.json({});`);
  worker = await start({ environment: ENVIRONMENT, backend: waits });
});
after(() => worker.stop());

test("a call that hangs after its caller left holds the Worker for 120 s at most", async () => {
  const began = Date.now();
  const lost = begin(worker.url, [{ wait: 123_000 }]);
  await pause(300);
  lost.resetAndDestroy();
  assert.equal((await submit(worker.url, [{}])).status, 429);
  await pause(began + 110_000 - Date.now());
  const second = submit(worker.url, [{ wait: 6_000 }]).then((reply) => [reply.status, Date.now()]);
  await pause(began + 124_000 - Date.now()); // The first call has ended by now, the second has not.
  const third = await submit(worker.url, [{}]);
  const [status, ended] = await second;
  assert.deepEqual([status, third.status], [200, 200]);
  assert.ok(ended - began >= 125_500 && ended - began < 130_000, `${ended - began} ms`);
  assert.ok(Date.now() >= ended);
  assert.ok(Date.now() - began >= 125_500, "the third call did not wait for the second");
});
