"""What the suite is run against: `conformance-mcp` alone, and the broker in front of it."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))

from broker import BINARY, Broker  # noqa: E402
from processes import owned, wait_until_none  # noqa: E402

SERVER = Path(os.environ.get("LAZY_MCP_CONFORMANCE", BINARY.with_name("conformance-mcp")))
BACKEND = "conformance"
IDLE_SECONDS = 5
GONE_WITHIN = 5

POLICY = f"""
return broker.backend {{
  api = 1,
  scope = "session",
  idle_timeout_seconds = {IDLE_SECONDS},
  max_concurrency = 16,
  on_cancel = {{ action = "keep" }},
}}
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

    def __enter__(self) -> "Behind":
        self.config = self.root / "broker.toml"
        self.settings = {"server": {"listen": "127.0.0.1:0"}}
        (self.root / "conformance.lua").write_text(POLICY)
        self.write()
        # The capture is the test's review: everything that the server offers is enabled.
        command = [BINARY, "--config", self.config, "catalog", "capture", BACKEND]
        captured = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        if captured.returncode != 0:
            raise AssertionError(f"no catalog: exit code {captured.returncode}\n{captured.stderr}")
        self.broker = Broker(self)
        return self

    def write(self) -> None:
        quoted = {name: json.dumps(value) for name, value in {
            "listen": self.settings["server"]["listen"], "state": str(self.root / "state"), "server": str(SERVER),
            "folder": str(self.root),
        }.items()}
        self.config.write_text(
            f"[server]\nlisten = {quoted['listen']}\nstate_dir = {quoted['state']}\n"
            f"[backends.{BACKEND}]\ncommand = {quoted['server']}\n"
            'package = { name = "conformance-mcp", version = "1.0.0" }\n'
            f'catalog = "conformance.json"\npolicy = "conformance.lua"\nenv = {{ LAZY_MCP_TEST_FOLDER = {quoted["folder"]} }}\n'
        )

    def url(self, revision: str) -> str:
        """A legacy client has its session; one of 2026-07-28 has none, so its key is in the URL."""
        scope = f"/s/{secrets.token_hex(8)}" if revision >= "2026" else ""
        return f"{self.broker.url}/{BACKEND}{scope}/mcp"

    def __exit__(self, *exception: object) -> None:
        self.broker.__exit__(*exception)
        code = self.broker.process.returncode
        super().__exit__(*exception)
        if code != 0:
            raise AssertionError(f"the broker ended with {code}")
