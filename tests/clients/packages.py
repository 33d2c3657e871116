"""The clients and servers that are tested, at exact versions, in the folder of LAZY_MCP_TEST_DEPS."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

DEPS = Path(os.environ["LAZY_MCP_TEST_DEPS"])

SERVERS_VERSION = "2026.8.31"
TIME_VERSION = GIT_VERSION = "2026.10.19"

NPM = (
    "node@22.23.3",  # what the Inspector asks for; a system's own may be older
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/inspector@2.12.0",
    "mcp-remote@0.15.1",
    *(f"@modelcontextprotocol/server-{name}@{SERVERS_VERSION}" for name in ("everything", "filesystem", "memory")),
)
PIP = ("mcp==2.3.0", "fastmcp==4.2.3", f"mcp-server-time=={TIME_VERSION}", f"mcp-server-git=={GIT_VERSION}")

_NPM_FOLDER = DEPS / "clients"
_MODULES = _NPM_FOLDER / "node_modules"
_BIN = DEPS / "clients-py/bin"
NODE = _MODULES / ".bin/node"
PYTHON = _BIN / "python"
INSPECTOR = _MODULES / ".bin/mcp-inspector"
MCP_REMOTE = _MODULES / "mcp-remote/dist/proxy.js"


def server(name: str) -> list[str]:
    """The command of a server that runs on Node.js."""
    return [str(NODE), str(_MODULES / f"@modelcontextprotocol/server-{name}/dist/index.js")]


def python_server(name: str) -> list[str]:
    return [str(_BIN / f"mcp-server-{name}")]


def install() -> None:
    """Once for each set of versions."""
    _once(
        DEPS / ".clients",
        ["npm", "install", "--prefix", str(_NPM_FOLDER), "--no-save", "--no-audit", "--no-fund", "--loglevel=error", *NPM],
    )
    _once(DEPS / ".clients-venv", [sys.executable, "-m", "venv", str(DEPS / "clients-py")])
    _once(DEPS / ".clients-pip", [str(_BIN / "pip"), "install", "--quiet", "--disable-pip-version-check", *PIP])
    if not shutil.which("git"):
        raise SystemExit("mcp-server-git needs git")


def _once(stamp: Path, command: list[str]) -> None:
    if stamp.exists() and stamp.read_text() == " ".join(command):
        return
    print(*command, flush=True)
    DEPS.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True)
    stamp.write_text(" ".join(command))
