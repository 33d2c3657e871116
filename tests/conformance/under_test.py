"""What the suite is run against: `conformance-mcp` alone, and the broker in front of it."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))

from broker import BINARY, Broker  # noqa: E402
from processes import owned, wait_until_none  # noqa: E402

SERVER = Path(os.environ.get("LAZY_MCP_CONFORMANCE", BINARY.with_name("conformance-mcp")))
GONE_WITHIN = 5

POLICY = """
return broker.backend {
  api = 1,
  scope = "session",
  idle_timeout_seconds = %d,
  max_concurrency = 16,
  on_cancel = { action = "keep" },
}
"""


class Folder:
    """A folder by whose name everything that is started here is found again, wherever it goes."""

    def __init__(self) -> None:
        run = os.environ.get("LAZY_MCP_TEST_RUN", "")
        self.folder = tempfile.TemporaryDirectory(prefix=f"lazy-mcp-test-{run}-conformance-")
        self.root = Path(self.folder.name)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        """Proves that nothing runs any more that was started here."""
        try:
            wait_until_none("left by the conformance run", GONE_WITHIN, lambda: owned(-1, str(self.root)))
        finally:
            self.folder.cleanup()


class Direct(Folder):
    """The server alone, over its own HTTP."""

    def __enter__(self) -> "Direct":
        self.process = subprocess.Popen(
            [SERVER, "--http", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "LAZY_MCP_TEST_FOLDER": str(self.root)},
        )
        self.found = self.process.stdout.readline().strip()
        if not self.found:
            raise AssertionError(f"{SERVER} did not start: exit code {self.process.wait()}")
        return self

    def url(self, revision: str) -> str:
        return self.found

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)
        self.process.stdout.close()
        super().__exit__(*exception)


class Behind(Folder):
    """The broker, with the server behind it over stdio: an instance for each session, or for a key in the URL."""

    BACKENDS = {"both": []}
    IDLE_SECONDS = 5

    def __enter__(self) -> "Behind":
        self.config = self.root / "broker.toml"
        self.settings = {"server": {"listen": "127.0.0.1:0"}}
        (self.root / "conformance.lua").write_text(POLICY % self.IDLE_SECONDS)
        self.write()
        # The capture is the test's review: everything that the server offers is enabled.
        for backend in self.BACKENDS:
            command = [BINARY, "--config", self.config, "catalog", "capture", backend]
            captured = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
            )
            if captured.returncode != 0:
                raise AssertionError(f"no catalog: exit code {captured.returncode}\n{captured.stderr}")
        self.broker = Broker(self)
        return self

    def write(self) -> None:
        quoted = {name: json.dumps(value) for name, value in {
            "listen": self.settings["server"]["listen"], "state": str(self.root / "state"), "server": str(SERVER),
            "folder": str(self.root),
        }.items()}
        backends = "".join(
            f"[backends.{name}]\ncommand = {quoted['server']}\nargs = {json.dumps(args)}\n"
            'package = { name = "conformance-mcp", version = "1.0.0" }\n'
            f'catalog = "{name}.json"\npolicy = "conformance.lua"\nenv = {{ LAZY_MCP_TEST_FOLDER = {quoted["folder"]} }}\n'
            for name, args in self.BACKENDS.items()
        )
        server = f"[server]\nlisten = {quoted['listen']}\nstate_dir = {quoted['state']}\n"
        self.config.write_text(server + backends)

    def backend(self, revision: str) -> str:
        return "both"

    def url(self, revision: str) -> str:
        """A legacy client has its session; one of 2026-07-28 has none, so its key is in the URL."""
        scope = f"/s/{secrets.token_hex(8)}" if revision >= "2026" else ""
        return f"{self.broker.url}/{self.backend(revision)}{scope}/mcp"

    def __exit__(self, *exception: object) -> None:
        self.broker.__exit__(*exception)
        code = self.broker.process.returncode
        super().__exit__(*exception)
        if code != 0:
            raise AssertionError(f"the broker ended with {code}")


class Across(Behind):
    """The same with a server that speaks the other era than the client, and that one alone."""

    BACKENDS = {"legacy": ["--only", "legacy"], "modern": ["--only", "modern"]}
    # A legacy server is told once what its client can be asked, and by which request it was started decides that.
    IDLE_SECONDS = 300

    def backend(self, revision: str) -> str:
        return "legacy" if revision >= "2026" else "modern"

    def url(self, revision: str) -> str:
        url = super().url(revision)
        if revision >= "2026":
            self.start(url)
        return url

    @staticmethod
    def start(url: str) -> None:
        """The first call, of a client that can be asked everything."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"roots": {}, "sampling": {}, "elicitation": {"form": {}}},
        }
        call = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "test_simple_text", "arguments": {}, "_meta": meta},
        }
        request = urllib.request.Request(url, json.dumps(call).encode(), {
            "content-type": "application/json", "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "test_simple_text",
        })
        with urllib.request.urlopen(request, timeout=30) as answer:
            if "result" not in json.load(answer):
                raise AssertionError("the first call failed")
