// Commands for a client under test: a line of JSON on stdin for each, and a line of JSON as its answer.

import { createInterface } from "node:readline";

/** Answers until stdin ends, by the function of `operations` that a command's `op` names. */
export async function answer(operations) {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      console.log(JSON.stringify({ ok: await operations[command.op](command) }));
    } catch (error) {
      console.log(JSON.stringify({ error: `${error.code ?? ""} ${error.message}` }));
    }
  }
  process.exit(0);
}
