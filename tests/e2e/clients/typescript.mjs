// An MCP client on the TypeScript SDK, driven by lines of JSON on stdin: one command a line, one answer a line.
//
//   {"op": "connect", "url": "http://…", "headers": {…}} or {"op": "connect", "command": ["program", "argument", …]}
//   {"op": "list"}   {"op": "call", "tool": "…", "arguments": {…}}   {"op": "close"}
//
// The SDK lies in the folder of LAZY_MCP_TEST_DEPS, where tests/run.sh installs it.

import { join } from "node:path";
import { pathToFileURL } from "node:url";

import { answer } from "./commands.mjs";

const sdk = join(process.env.LAZY_MCP_TEST_DEPS, "npm/node_modules/@modelcontextprotocol/sdk/dist/esm/client");
const load = (file) => import(pathToFileURL(join(sdk, file)));
const { Client } = await load("index.js");
const { StreamableHTTPClientTransport } = await load("streamableHttp.js");
const { StdioClientTransport } = await load("stdio.js");

const client = new Client({ name: "e2e-typescript", version: "1.0.0" });
// A stream that breaks with the broker would be reported here; the next request tells whether it mattered.
client.onerror = () => {};
let transport;

const operations = {
  async connect({ url, headers, command }) {
    transport = url
      ? new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })
      : new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env });
    await client.connect(transport);
    return { session: transport.sessionId ?? null, server: client.getServerVersion() };
  },
  async list() {
    return (await client.listTools()).tools.map((tool) => tool.name);
  },
  async call({ tool, arguments: args }) {
    return client.callTool({ name: tool, arguments: args }, undefined, { timeout: 120_000 });
  },
  async close() {
    await transport.terminateSession?.();
    await client.close();
    return null;
  },
};

await answer(operations);
