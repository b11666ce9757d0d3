// The Worker in front of the AI binding. It accepts what the functions send to Cloudflare's REST API, and passes on what
// the binding received: status, headers and body, unread. It keeps no batch: only one request is in memory.

import { errorReply, type ApiError } from "./errors";
import { authorized } from "./secret";
import { takeTurn } from "./turn";

export interface Env {
  AI: Binding;
  /** What callers send as `Authorization: Bearer …`. Set with `wrangler secret put SHARED_SECRET`. */
  SHARED_SECRET: string;
}

/** The part of the AI binding that is used: any model, any input. */
interface Binding {
  run(model: string, inputs: object, options: { queueRequest?: true; returnRawResponse: true }): Promise<unknown>;
}

/** A request's body must have fewer bytes: the batch API accepts less than 10 MB. */
const MAX_BODY_BYTES = 10_000_000;

/**
 * Most characters of a reply that is passed on as text, when the binding returns objects. A Worker has 128 MB for
 * everything, and holds such a reply as objects, as text and as bytes. A batch with a larger one is submitted again in
 * pieces: the callers do so when a poll returns 3006.
 */
const MAX_REPLY_CHARACTERS = 20_000_000;

const MODEL = /^\/run\/(@(?:cf|hf)\/[A-Za-z0-9._-]+\/[A-Za-z0-9._-]+)$/;
const JSON_HEADERS = { "content-type": "application/json" };

export default {
  async fetch(request: Request, env: Env, context: ExecutionContext): Promise<Response> {
    if (!(await authorized(request, env.SHARED_SECRET))) {
      return errorReply({ code: 10000, message: "The shared secret is wrong." });
    }
    const url = new URL(request.url);
    if (request.method === "GET" && url.pathname === "/check") {
      return Response.json({ success: true });
    }
    const model = MODEL.exec(url.pathname)?.[1];
    if (request.method !== "POST" || !model) {
      return errorReply({ code: 7000, message: "No route for that URI" });
    }
    const length = Number(request.headers.get("content-length") ?? Number.NaN);
    if (!(length < MAX_BODY_BYTES)) {
      return errorReply({ code: 3006, message: "The request body must be under 10,000,000 bytes and state its length." });
    }
    const endTurn = await takeTurn();
    if (!endTurn) {
      return errorReply({ code: 971, message: "This Worker is busy with other batches." }, { "retry-after": "5" });
    }
    const reply = run(env.AI, model, request).finally(endTurn);
    context.waitUntil(reply); // A caller that disconnects cancels the rest of this function, and `finally` with it.
    return reply;
  },
};

/** Submits a batch, or polls one, and answers with what the binding returned. */
async function run(ai: Binding, model: string, request: Request): Promise<Response> {
  let inputs: { requests?: unknown; request_id?: unknown };
  try {
    inputs = await request.json();
  } catch {
    return errorReply({ code: 3003, message: "The request body is not JSON." });
  }
  const polling = typeof inputs?.request_id === "string";
  if (!polling && !Array.isArray(inputs?.requests)) {
    return errorReply({ code: 5006, message: "The body needs `requests`, an array, or `request_id`, a string." });
  }
  try {
    const reply = polling
      ? await ai.run(model, { request_id: inputs.request_id }, { returnRawResponse: true })
      : await ai.run(model, { requests: inputs.requests }, { queueRequest: true, returnRawResponse: true });
    return passOn(reply);
  } catch (error) {
    return errorReply(describe(error));
  }
}

/** Returns the raw response as it came; a binding without raw responses returns an object, or a body that is not JSON. */
function passOn(reply: unknown): Response {
  if (reply instanceof Response) {
    return reply;
  }
  if (reply instanceof ReadableStream) {
    return new Response(reply, { headers: JSON_HEADERS });
  }
  const text = JSON.stringify(reply);
  if (text.length > MAX_REPLY_CHARACTERS) {
    return errorReply({ code: 3006, message: "The reply is larger than this Worker can pass on." });
  }
  return new Response(text, { headers: JSON_HEADERS });
}

/**
 * The code and the text of an error that the binding threw: it reports both as `<code>: <text>`, behind the error's name
 * if the binding is another Worker. Of AI Gateway's errors it knows no text, and writes `undefined`.
 */
function describe(error: unknown): ApiError {
  const text = error instanceof Error ? error.message : String(error);
  const match = /^(?:(?:InferenceUpstream|AiGateway)Error: )?(\d{3,5}): ?(?:undefined$)?([\s\S]*)$/.exec(text);
  return match ? { code: Number(match[1]), message: match[2] ?? "" } : { code: null, message: text };
}
