// Calls of the Worker, for the tests beside this file.

import { connect } from "node:net";

export const MODEL = "@cf/baai/bge-small-en-v1.5";
export const SECRET = "a shared secret";
export const ENVIRONMENT = { PATH: process.env.PATH, SHARED_SECRET: SECRET };

/** A backend of the AI binding that runs `body`, given a call's `inputs`, `options` and `first`, its first request. */
export const backend = (body) => `
let now = 0, most = 0;
export default {
  async fetch(call, env) {
    const { inputs, options } = await call.json();
    const first = inputs.requests?.[0] ?? {};
    most = Math.max(most, ++now);
    try { ${body} } finally { now--; }
  }
};
`;

/** Posts `body` to a path of the Worker at `url`. */
export const call = (url, path, body, headers = { authorization: `Bearer ${SECRET}` }) =>
  fetch(new URL(path, url), { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body), headers });

export const submit = (url, requests) => call(url, `run/${MODEL}?queueRequest=true`, { requests });

/** A connection that has sent a submit's head and the first `share` of its body. */
export function begin(url, requests, share = 1) {
  const body = JSON.stringify({ requests });
  const socket = connect(new URL(url).port, "127.0.0.1");
  socket.on("error", () => {}); // It is ours to break.
  socket.write(
    `POST /run/${MODEL}?queueRequest=true HTTP/1.1\r\nhost: worker\r\nauthorization: Bearer ${SECRET}\r\n` +
      `content-length: ${body.length}\r\n\r\n${body.slice(0, body.length * share)}`,
  );
  return socket;
}

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
