// A client on the TypeScript SDK that makes one call and reports it, a line of JSON each: {"progress": n},
// {"result": text} or {"error": text}.
//
//   node client.mjs PATH-OF-THE-SDK URL TOOL ARGUMENTS

import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [sdk, url, tool, args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(join(sdk, "dist/esm/client", file)));
const { Client } = await load("index.js");
const { StreamableHTTPClientTransport } = await load("streamableHttp.js");

const client = new Client({ name: "resume-typescript", version: "1.0.0" });
// A connection that breaks is reported here; what becomes of the call is what counts.
client.onerror = () => {};
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const say = (line) => console.log(JSON.stringify(line));
try {
  const onprogress = ({ progress }) => say({ progress });
  const call = { name: tool, arguments: JSON.parse(args) };
  const result = await client.callTool(call, undefined, { timeout: 20_000, onprogress });
  say({ result: result.content[0].text });
} catch (error) {
  say({ error: `${error.code ?? ""} ${error.message}` });
}
process.exit(0);
