"""Commands for a client under test: a line of JSON on stdin for each, and a line of JSON as its answer."""

import asyncio
import contextlib
import json
import sys


async def answer(driver: object) -> None:
    """Answers until stdin ends, by the method of `driver` that a command's `op` names; then closes its `stack`."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            answer = {"ok": await getattr(driver, command["op"])(command)}
        except Exception as error:  # whatever it is, the test is to see it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    with contextlib.suppress(Exception):  # the broker may be gone already
        async with asyncio.timeout(5):
            await driver.stack.aclose()
