"""The broker in front of real servers, as session backends, and catalogs that the test itself takes down."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import packages

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))

from broker import BINARY, Broker, to_toml  # noqa: E402
from processes import owned, wait_until_none  # noqa: E402

HERE = Path(__file__).resolve().parent
GONE_WITHIN = 15

POLICY = """
return broker.backend {
  api = 1,
  scope = "session",
  idle_timeout_seconds = 60,
  max_concurrency = 4,
  on_cancel = { action = "recycle", grace_seconds = 1 },
}
"""


@dataclass
class Server:
    """A backend: how it is started, and how it is started for its catalog."""

    package: str
    version: str
    command: list[str]
    """`{folder}` is the folder of the run."""
    captured_with: list[str] = field(default_factory=list)
    """Stands before the command while its catalog is taken down."""


DECLARED = json.dumps({"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}}})

SERVERS = {
    "everything": Server("@modelcontextprotocol/server-everything", packages.SERVERS_VERSION, packages.server("everything")),
    # The same, with the tools that it shows to clients with capabilities only: an empty capture does not see them.
    "asking": Server(
        "@modelcontextprotocol/server-everything",
        packages.SERVERS_VERSION,
        packages.server("everything"),
        [sys.executable, str(HERE / "declaring.py"), DECLARED],
    ),
    "filesystem": Server(
        "@modelcontextprotocol/server-filesystem",
        packages.SERVERS_VERSION,
        [*packages.server("filesystem"), "{folder}/of-arguments"],
    ),
    "memory": Server("@modelcontextprotocol/server-memory", packages.SERVERS_VERSION, packages.server("memory")),
    "time": Server("mcp-server-time", packages.TIME_VERSION, packages.python_server("time")),
    "git": Server("mcp-server-git", packages.GIT_VERSION, packages.python_server("git")),
}


class Place:
    """A folder with a configuration of all servers and their catalogs, by whose name every process is found again."""

    def __init__(self, catalogs: dict[str, str] | None = None) -> None:
        run = os.environ.get("LAZY_MCP_TEST_RUN", "")
        self.folder = tempfile.TemporaryDirectory(prefix=f"lazy-mcp-test-{run}-clients-")
        self.root = Path(self.folder.name)
        self.config = self.root / "broker.toml"
        self.of_arguments = self.root / "of-arguments"
        self.of_roots = self.root / "of-roots"
        self.repository = self.root / "repository"
        for folder in (self.of_arguments, self.of_roots):
            folder.mkdir()
            (folder / f"{folder.name}.txt").write_text(f"this is {folder.name}\n")
        for name, text in (catalogs or {}).items():
            (self.root / f"{name}.json").write_text(text)
        self._make_repository()
        (self.root / "policy.lua").write_text(POLICY)
        self.settings = {"server": {"listen": "127.0.0.1:0", "state_dir": str(self.root / "state")}}
        self.settings["backends"] = {name: self._backend(name, server) for name, server in SERVERS.items()}
        self.write()

    def capture(self) -> dict[str, str]:
        """The catalogs, as the test's review: everything that the servers offer is enabled."""
        self.settings["backends"] = {
            name: self._backend(name, server, server.captured_with) for name, server in SERVERS.items()
        }
        self.write()
        running = {name: self._lazy_mcp("catalog", "capture", name) for name in SERVERS}
        for name, process in running.items():
            _, said = process.communicate(timeout=120)
            if process.returncode != 0:
                raise AssertionError(f"no catalog of {name}: exit code {process.returncode}\n{said}")
        return {name: (self.root / f"{name}.json").read_text() for name in SERVERS}

    def stop(self, backend: str) -> None:
        """`lazy-mcp stop`, which waits for the proof."""
        process = self._lazy_mcp("stop", backend)
        told, said = process.communicate(timeout=60)
        if process.returncode != 0:
            raise AssertionError(f"stop {backend}: exit code {process.returncode}\n{told}{said}")

    def write(self) -> None:
        self.config.write_text(to_toml(self.settings))

    def command(self, backend: str) -> list[str]:
        """How a client starts it directly."""
        return [word.format(folder=self.root) for word in SERVERS[backend].command]

    def _backend(self, name: str, server: Server, captured_with: list[str] = ()) -> dict:
        program, *arguments = [*captured_with, *(word.format(folder=self.root) for word in server.command)]
        return {
            "command": program,
            "args": arguments,
            "package": {"name": server.package, "version": server.version},
            "catalog": f"{name}.json",
            "policy": "policy.lua",
            # server-everything with its timers does not end by itself.
            "deadlines": {"polite_seconds": 1},
            "env": {"LAZY_MCP_TEST_FOLDER": str(self.root), "MEMORY_FILE_PATH": str(self.root / "memory.jsonl")},
        }

    def _lazy_mcp(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [BINARY, "--config", self.config, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def _make_repository(self) -> None:
        self.repository.mkdir()
        who = ["-c", "user.name=clients", "-c", "user.email=clients@localhost"]
        for arguments in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "-m", "the first and only one"]):
            subprocess.run(["git", "-C", self.repository, *arguments], check=True, capture_output=True)
        (self.repository / "untracked.txt").write_text("new\n")

    def close(self) -> None:
        """Proves that nothing runs any more that was started here."""
        try:
            wait_until_none("left by the run with clients", GONE_WITHIN, lambda: owned(-1, str(self.root)))
        finally:
            self.folder.cleanup()


def at_zero(broker: Broker) -> dict | None:
    """The status, if it says that nothing runs, nothing waits and nothing is unproved."""
    status = broker.status()
    totals = status["totals"]
    clean = all(
        totals[key] == 0
        for key in ("live_instances", "active_calls", "queued_calls", "owned_processes", "cleanup_failed")
    )
    instances = [instance for backend in status["backends"] for instance in backend["instances"]]
    return status if clean and all(instance["state"] == "stopped" for instance in instances) else None

