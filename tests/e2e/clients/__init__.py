"""MCP clients as processes of their own, spoken to in lines of JSON."""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent


class ClientError(Exception):
    """What the client's SDK raised."""


class Client:
    """One client process. Ended with the `with` block, politely if it is connected still."""

    def __init__(self, program: list[str]) -> None:
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=False
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def ask(self, op: str, limit: float = 150, **members: object) -> object:
        """The client's answer within `limit` seconds. Raises `ClientError` with what its SDK raised."""
        self.process.stdin.write(json.dumps({"op": op, **members}) + "\n")
        self.process.stdin.flush()
        line = self.lines.get(timeout=limit)
        if not line:
            raise ClientError(f"the client exited with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer["ok"]

    def call(self, tool: str, **arguments: object) -> list[dict]:
        """The content of a call that succeeds."""
        result = self.ask("call", tool=tool, arguments=arguments)
        if result.get("isError"):
            raise ClientError(f"{tool}: {result['content']}")
        return result["content"]

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def typescript() -> Client:
    return Client(["node", str(HERE / "typescript.mjs")])


def python() -> Client:
    return Client([str(Path(os.environ["LAZY_MCP_TEST_DEPS"]) / "py/bin/python"), str(HERE / "python.py")])


BOTH = {"typescript": typescript, "python": python}

if sys.version_info < (3, 11):
    raise SystemExit("the end-to-end tests need Python 3.11 or newer")
