// A client on one of the two TypeScript SDKs, driven by lines of JSON on stdin: one command a line, one answer a line.
//
//   typescript.mjs 1|2      1: @modelcontextprotocol/sdk, of the legacy era; 2: @modelcontextprotocol/client, of both
//
//   {"op": "connect", "url": "http://…"} or {"op": "connect", "command": ["program", "argument", …]}
//       with "answers": {"roots": […], "sampling": "text", "elicitation": {…}}, for a client that can be asked
//   {"op": "lists"}   {"op": "call", "tool": "…", "arguments": {…}}   {"op": "cancel", …}   {"op": "heard"}   …
//
// What a server says of its own accord, and asks, is kept and told by "heard".
// The SDKs lie in the folder of LAZY_MCP_TEST_DEPS, where tests/clients/packages.py installs them.

import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { answer } from "../../e2e/clients/commands.mjs";

const packages = join(process.env.LAZY_MCP_TEST_DEPS, "clients/node_modules/@modelcontextprotocol");
const load = (file) => import(pathToFileURL(join(packages, file)));

async function first() {
  const sdk = "sdk/dist/esm";
  const types = await load(`${sdk}/types.js`);
  const schemas = {
    "roots/list": types.ListRootsRequestSchema,
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "elicitation/create": types.ElicitRequestSchema,
  };
  const { Client } = await load(`${sdk}/client/index.js`);
  return {
    client: (options) => new Client({ name: "clients-typescript-1", version: "1.0.0" }, options),
    Http: (await load(`${sdk}/client/streamableHttp.js`)).StreamableHTTPClientTransport,
    Stdio: (await load(`${sdk}/client/stdio.js`)).StdioClientTransport,
    handle: (client, method, handler) => client.setRequestHandler(schemas[method], handler),
    call: (client, params, options) => client.callTool(params, undefined, options),
    protocol: (client, transport) => transport.protocolVersion ?? null,
  };
}

async function second() {
  const { Client, StreamableHTTPClientTransport } = await load("client/dist/index.mjs");
  return {
    client: (options) =>
      new Client({ name: "clients-typescript-2", version: "1.0.0" }, { ...options, versionNegotiation: { mode: "auto" } }),
    Http: StreamableHTTPClientTransport,
    Stdio: (await load("client/dist/stdio.mjs")).StdioClientTransport,
    handle: (client, method, handler) => client.setRequestHandler(method, handler),
    call: (client, params, options) => client.callTool(params, options),
    protocol: (client) => client.getNegotiatedProtocolVersion() ?? null,
  };
}

const sdk = await (process.argv[2] === "1" ? first() : second());
const LIMIT = { timeout: 60_000 };
const heard = [];
let client, transport;

function answering({ roots, sampling, elicitation }) {
  const answer = (method, result) =>
    sdk.handle(client, method, async (request) => {
      heard.push({ method, params: request.params ?? {} });
      return result;
    });
  answer("roots/list", { roots });
  answer("sampling/createMessage", { model: "scripted", role: "assistant", content: { type: "text", text: sampling } });
  answer("elicitation/create", { action: "accept", content: elicitation });
}

const operations = {
  async connect({ url, command, answers }) {
    const capabilities = answers ? { roots: { listChanged: true }, sampling: {}, elicitation: { form: {} } } : {};
    client = sdk.client({ capabilities });
    client.onerror = () => {};
    client.fallbackNotificationHandler = async ({ method, params }) => void heard.push({ method, params: params ?? {} });
    if (answers) answering(answers);
    transport = url
      ? new sdk.Http(new URL(url))
      : new sdk.Stdio({ command: command[0], args: command.slice(1), env: process.env, stderr: "ignore" });
    await client.connect(transport, LIMIT);
    return {
      protocol: sdk.protocol(client, transport),
      session: transport.sessionId ?? null,
      server: client.getServerVersion(),
      instructions: client.getInstructions() ?? null,
      capabilities: client.getServerCapabilities(),
    };
  },
  async tools() {
    return (await client.listTools()).tools;
  },
  async lists() {
    return {
      tools: (await client.listTools()).tools,
      prompts: (await client.listPrompts()).prompts,
      resources: (await client.listResources()).resources,
      resourceTemplates: (await client.listResourceTemplates()).resourceTemplates,
    };
  },
  async call({ tool, arguments: args, progress }) {
    const seen = [];
    const options = progress ? { ...LIMIT, onprogress: (one) => seen.push(one.progress) } : LIMIT;
    const result = await sdk.call(client, { name: tool, arguments: args }, options);
    return { ...result, progress: seen };
  },
  // A call that is given up at its first sign of progress.
  async cancel({ tool, arguments: args }) {
    const abort = new AbortController();
    let seen = 0;
    const onprogress = () => void ((seen += 1), abort.abort("enough"));
    try {
      await sdk.call(client, { name: tool, arguments: args }, { ...LIMIT, signal: abort.signal, onprogress });
    } catch (error) {
      return { progress: seen, error: String(error.message ?? error) };
    }
    throw new Error("the call was answered although it was cancelled");
  },
  prompt: ({ name, arguments: args }) => client.getPrompt({ name, arguments: args }, LIMIT),
  read: ({ uri }) => client.readResource({ uri }, LIMIT),
  complete: async ({ ref, argument, context }) =>
    (await client.complete({ ref, argument, ...(context && { context: { arguments: context } }) }, LIMIT)).completion,
  level: ({ level }) => client.setLoggingLevel(level),
  subscribe: ({ uri }) => client.subscribeResource({ uri }),
  unsubscribe: ({ uri }) => client.unsubscribeResource({ uri }),
  heard: async () => heard,
  async close() {
    await transport.terminateSession?.();
    await client.close();
    return null;
  },
};

await answer(operations);
