"""Starts a server and declares capabilities to it that its client does not have: `declaring.py CAPABILITIES COMMAND…`.

For `lazy-mcp catalog capture`, which declares none, in front of servers that show some of their tools only to clients
with certain capabilities. Such a server asks its client questions; they are refused here.
"""

import json
import subprocess
import sys
import threading


def main() -> int:
    capabilities, command = json.loads(sys.argv[1]), sys.argv[2:]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    writing = threading.Lock()

    def send(line: bytes) -> None:
        with writing:
            server.stdin.write(line)
            server.stdin.flush()

    def to_server() -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if message.get("method") == "initialize":
                message["params"]["capabilities"] = capabilities
            send(json.dumps(message).encode() + b"\n")
        server.stdin.close()

    threading.Thread(target=to_server, daemon=True).start()
    for line in server.stdout:
        message = json.loads(line)
        if "method" in message and "id" in message:
            error = {"code": -32601, "message": "nobody is there to answer"}
            send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode() + b"\n")
        else:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return server.wait()


sys.exit(main())
