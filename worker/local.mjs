// The Worker in real workerd on this machine. A second Worker replaces the AI binding: it forwards each call to a
// Workers AI with a REST API, such as the local one, and returns or throws what the binding would.
//
//   node local.mjs PORT    with WORKERS_AI_BASE_URL, CLOUDFLARE_ACCOUNT_ID, CLOUDFLARE_API_TOKEN and SHARED_SECRET

import { pathToFileURL } from "node:url";
import { buildSync } from "esbuild";
import { Miniflare } from "miniflare";

const BINDING = `
import { WorkerEntrypoint } from "cloudflare:workers";

export class Ai extends WorkerEntrypoint {
  async run(model, inputs, options = {}) {
    const { BASE_URL, ACCOUNT_ID, API_TOKEN } = this.env;
    const query = options.queueRequest ? "?queueRequest=true" : "";
    const reply = await fetch(BASE_URL + "/accounts/" + ACCOUNT_ID + "/ai/run/" + model + query, {
      method: "POST",
      headers: { authorization: "Bearer " + API_TOKEN, "content-type": "application/json" },
      body: JSON.stringify(inputs),
    });
    const text = await reply.text();
    let body;
    try {
      body = JSON.parse(text);
    } catch {
      throw new Error("Workers AI answered " + reply.status + " without JSON");
    }
    const error = body.errors?.[0];
    if (!reply.ok || error) {
      throw new Error(error ? error.code + ": " + error.message : "HTTP " + reply.status);
    }
    return body.result ?? body;
  }
}

export default { fetch: () => new Response(null, { status: 404 }) };
`;

/** Starts both Workers; the result has `ready` (a URL) and `dispose()`. */
export function start({ port = 0, baseUrl, account, token, secret, binding = BINDING }) {
  const bundle = buildSync({
    entryPoints: [new URL("src/index.ts", import.meta.url).pathname],
    bundle: true,
    format: "esm",
    write: false,
  });
  return new Miniflare({
    host: "127.0.0.1",
    port,
    cf: false,
    workers: [
      {
        name: "dropbatch",
        modules: true,
        script: bundle.outputFiles[0].text,
        compatibilityDate: "2026-04-01",
        bindings: { SHARED_SECRET: secret },
        serviceBindings: { AI: { name: "binding", entrypoint: "Ai" } },
      },
      {
        name: "binding",
        modules: true,
        script: binding,
        compatibilityDate: "2026-04-01",
        bindings: { BASE_URL: baseUrl ?? "", ACCOUNT_ID: account ?? "", API_TOKEN: token ?? "" },
      },
    ],
  });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { WORKERS_AI_BASE_URL, CLOUDFLARE_ACCOUNT_ID, CLOUDFLARE_API_TOKEN, SHARED_SECRET } = process.env;
  const running = start({
    port: Number(process.argv[2] ?? 0),
    baseUrl: WORKERS_AI_BASE_URL,
    account: CLOUDFLARE_ACCOUNT_ID,
    token: CLOUDFLARE_API_TOKEN,
    secret: SHARED_SECRET,
  });
  console.log(String(await running.ready));
  process.on("SIGTERM", () => running.dispose().then(() => process.exit(0)));
}
