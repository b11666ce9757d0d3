// The Worker in real workerd on this machine, behind workerd's own AI binding. A second Worker takes the binding's calls:
// it forwards each to a Workers AI with a REST API, such as the local one.
//
//   node local.mjs PORT    with WORKERS_AI_BASE_URL, CLOUDFLARE_ACCOUNT_ID, CLOUDFLARE_API_TOKEN, SHARED_SECRET and,
//                          for a binding that does not return raw responses, RAW_RESPONSE=no

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { buildSync } from "esbuild";
import workerd from "workerd";

// What the binding's backend does: its calls name the model in a header. A raw reply passes as it came; an object loses
// the REST envelope.
const BACKEND = `
export default {
  async fetch(request, { BASE_URL, ACCOUNT_ID, API_TOKEN }) {
    const { inputs, options } = await request.json();
    const model = request.headers.get("cf-consn-model-id");
    const query = options.queueRequest ? "?queueRequest=true" : "";
    const reply = await fetch(BASE_URL + "/accounts/" + ACCOUNT_ID + "/ai/run/" + model + query, {
      method: "POST",
      headers: { authorization: "Bearer " + API_TOKEN, "content-type": "application/json" },
      body: JSON.stringify(inputs),
      redirect: "manual",
    });
    if (options.returnRawResponse || !reply.ok) return reply;
    const text = await reply.text();
    try {
      const body = JSON.parse(text);
      const problem = body.errors?.[0];
      return problem ? Response.json(body, { status: 500 }) : Response.json(body.result ?? body);
    } catch {
      return new Response(text, { status: 502 });
    }
  }
};
`;

// The binding of a runtime that does not know returnRawResponse: it ignores the option.
const OLDER_BINDING = `
import { WorkerEntrypoint } from "cloudflare:workers";
export class Ai extends WorkerEntrypoint {
  run(model, inputs, { returnRawResponse, ...options }) {
    return this.env.AI.run(model, inputs, options);
  }
}
export default { fetch: () => new Response(null, { status: 404 }) };
`;

const CONFIG = ({ port, raw, upstream }) => `
using Workerd = import "/workerd/workerd.capnp";
const ai :Workerd.Worker.Binding = (
  name = "AI",
  wrapped = (moduleName = "cloudflare-internal:ai-api", innerBindings = [(name = "fetcher", service = "${upstream ? "upstream" : "backend"}")])
);
const older :Workerd.Worker.Binding = (name = "AI", service = (name = "older", entrypoint = "Ai"));
const config :Workerd.Config = (
  services = [
    (name = "dropbatch", worker = (
      modules = [(name = "index.js", esModule = embed "index.js")],
      compatibilityDate = "2026-04-01",
      bindings = [(name = "SHARED_SECRET", fromEnvironment = "SHARED_SECRET"), ${raw ? ".ai" : ".older"}]
    )),
    (name = "older", worker = (
      modules = [(name = "older.js", esModule = embed "older.js")],
      compatibilityDate = "2026-04-01",
      bindings = [.ai]
    )),
    (name = "backend", worker = (
      modules = [(name = "backend.js", esModule = embed "backend.js")],
      compatibilityDate = "2026-04-01",
      bindings = [
        (name = "BASE_URL", fromEnvironment = "WORKERS_AI_BASE_URL"),
        (name = "ACCOUNT_ID", fromEnvironment = "CLOUDFLARE_ACCOUNT_ID"),
        (name = "API_TOKEN", fromEnvironment = "CLOUDFLARE_API_TOKEN")
      ]
    )),
    ${upstream ? `(name = "upstream", external = (address = "${upstream}", http = ())),` : ""}
    (name = "internet", network = (allow = ["public", "private", "local"], tlsOptions = (trustBrowserCas = true)))
  ],
  sockets = [(name = "http", address = "127.0.0.1:${port}", http = (), service = "dropbatch")]
);
`;

/**
 * Starts workerd. The result has `url`, `pid` and `stop()`.
 *
 * `environment` has the variables above; `backend`, a module, or `upstream`, an address, replaces what takes the binding's
 * calls; without `raw`, the binding does not return raw responses.
 */
export async function start({ port = 0, environment, backend = BACKEND, upstream, raw = true }) {
  const folder = mkdtempSync(join(tmpdir(), "dropbatch-worker-"));
  const bundle = { bundle: true, format: "esm", outfile: join(folder, "index.js"), logLevel: "warning" };
  buildSync({ entryPoints: [new URL("src/index.ts", import.meta.url).pathname], ...bundle });
  const files = { "backend.js": backend, "older.js": OLDER_BINDING, "config.capnp": CONFIG({ port, raw, upstream }) };
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(join(folder, name), text);
  }
  const running = spawn(workerd.default ?? workerd, ["serve", "--control-fd=3", join(folder, "config.capnp")], {
    env: environment,
    stdio: ["ignore", "inherit", "inherit", "pipe"],
  });
  const ended = once(running, "exit").then(() => rmSync(folder, { recursive: true, force: true }));
  for await (const line of createInterface({ input: running.stdio[3] })) {
    const { event, port: listening } = JSON.parse(line);
    if (event === "listen") {
      const stop = () => (running.kill(), ended);
      return { url: `http://127.0.0.1:${listening}/`, pid: running.pid, stop };
    }
  }
  throw new Error(`workerd did not start (exit code ${running.exitCode})`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { RAW_RESPONSE, ...environment } = process.env;
  const running = await start({ port: Number(process.argv[2] ?? 0), environment, raw: RAW_RESPONSE !== "no" });
  console.log(running.url);
  process.on("SIGTERM", () => running.stop().then(() => process.exit(0)));
}
