"""Real clients and real servers through the broker.

`tests/run.sh clients` installs what is needed and runs this. By hand:

    LAZY_MCP_BINARY=target/debug/lazy-mcp LAZY_MCP_TEST_DEPS=$PWD/tests/.deps python3 tests/clients/run.py [-v] [NAME…]

What a client sees through the broker is compared with what it sees when it starts the same server itself: each scenario
is played both ways. What is another thing on purpose is said where it is tested:

- lists are the reviewed catalog: what a server shows only to clients with certain capabilities is not in it, because it
  is taken down with none; tools that work as tasks only are left out, because tasks are not relayed;
- what a server says of its lists having changed is therefore not passed on;
- a client of 2026-07-28 has no session: it needs a key in the URL. What a legacy server asks it comes as a result, so
  what the server asks while none of its calls is out, nobody can be asked.
"""

import json
import os
import re
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import packages
from place import BINARY, SERVERS, Broker, Place, at_zero

import summary  # of tests/e2e
from clients import Client, ClientError  # of tests/e2e
from processes import describe, wait_for, wait_until_none

HERE = Path(__file__).resolve().parent
DRIVERS = {
    "typescript 1": [str(packages.NODE), str(HERE / "drivers/typescript.mjs"), "1"],
    "typescript 2": [str(packages.NODE), str(HERE / "drivers/typescript.mjs"), "2"],
    "python": [str(packages.PYTHON), str(HERE / "drivers/python.py"), "mcp"],
    "fastmcp": [str(packages.PYTHON), str(HERE / "drivers/python.py"), "fastmcp"],
}
DUAL = ("typescript 2", "python", "fastmcp")
LEGACY, MODERN = "2025-11-25", "2026-07-28"
DOCUMENT = "demo://resource/static/document/features.md"
TEMPLATE = "demo://resource/dynamic/text/{resourceId}"
ONLY_TASKS = {"simulate-research-query"}
NEED_CAPABILITIES = {"get-roots-list", "trigger-elicitation-request", "trigger-sampling-request"}
# The server says something again every 5 s.
HEARD_WITHIN = 8
# A polite close, which a server with timers does not follow, and the sweep.
GONE_WITHIN = 15


class Clients(unittest.TestCase):
    catalogs: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        place = Place()
        cls.addClassCleanup(place.close)
        cls.catalogs = place.capture()

    def setUp(self) -> None:
        self.place = Place(self.catalogs)
        self.addCleanup(self.place.close)
        self.broker = Broker(self.place)
        self.addCleanup(self.end_broker)

    def end_broker(self) -> None:
        code = self.broker.terminate()
        self.broker.__exit__(None)
        self.assertEqual(code, 0)

    def url(self, backend: str, key: str = "") -> str:
        return f"{self.broker.url}/{backend}/{f's/{key}/' if key else ''}mcp"

    def answers(self) -> dict:
        root = {"uri": self.place.of_roots.as_uri(), "name": "the root"}
        return {"roots": [root], "sampling": "forty-two", "elicitation": {"name": "Ada"}}

    def client(self, kind: str) -> Client:
        return self.enterContext(Client(DRIVERS[kind]))

    def through(self, kind: str, backend: str, key: str = "", **more: object) -> Client:
        client = self.client(kind)
        greeted = client.ask("connect", url=self.url(backend, key), **more)
        self.assertEqual(greeted["protocol"], MODERN if key else LEGACY)
        return client

    def direct(self, kind: str, backend: str, **more: object) -> Client:
        client = self.client(kind)
        client.ask("connect", command=self.place.command(backend), **more)
        return client

    def nothing_runs(self) -> None:
        running = self.broker.below()
        self.assertFalse(running, describe(running))

    def end(self, backend: str, *clients: Client, stop: bool = False) -> None:
        """The clients leave, or the operator stops their servers: nothing is left, by the process table and by status."""
        if stop:
            self.place.stop(backend)
            self.nothing_runs()
        for client in clients:
            client.ask("close")
        wait_until_none(f"the end of {backend}", GONE_WITHIN, self.broker.below)
        status = wait_for("/status to say so", 5, lambda: at_zero(self.broker))
        found = next(one for one in status["backends"] if one["name"] == backend)
        self.assertEqual((found["starts"], found["last_cleanup"]["ok"]), (found["proofs"], True), found)

    def wait_heard(self, client: Client, method: str, **params: object) -> dict:
        """The params of a message of the server, once one has come with at least these."""

        def look() -> dict | None:
            said = (one for one in client.ask("heard") if one["method"] == method)
            return next((one for one in said if params.items() <= one["params"].items()), None)

        return wait_for(f"{method} {params}", HEARD_WITHIN, look)["params"]

    def text(self, client: Client, tool: str, **arguments: object) -> str:
        return "\n".join(block.get("text", "") for block in client.call(tool, **arguments))

    # What a client does with server-everything. It is the same with the server itself.

    def ask_everything(self, client: Client) -> None:
        """What every client can ask."""
        self.assertEqual(client.call("echo", message="Grüße"), [{"type": "text", "text": "Echo: Grüße"}])
        prompt = client.ask("prompt", name="args-prompt", arguments={"city": "Paris", "state": "Texas"})
        self.assertEqual(prompt["messages"][0]["content"]["text"], "What's weather in Paris, Texas?")
        document = client.ask("read", uri=DOCUMENT)["contents"][0]
        self.assertEqual((document["uri"], document["mimeType"]), (DOCUMENT, "text/markdown"))
        self.assertIn("# Everything Server - Features", document["text"])
        dynamic = client.ask("read", uri=TEMPLATE.replace("{resourceId}", "7"))["contents"][0]
        self.assertIn("Resource 7: This is a plaintext resource", dynamic["text"])
        names = client.ask(
            "complete", ref={"type": "ref/prompt", "name": "completable-prompt"},
            argument={"name": "name", "value": "A"}, context={"department": "Engineering"},
        )
        self.assertEqual(names["values"], ["Alice"])
        ids = client.ask(
            "complete", ref={"type": "ref/resource", "uri": TEMPLATE}, argument={"name": "resourceId", "value": "7"}
        )
        self.assertEqual(ids["values"], ["7"])
        image = next(block for block in client.call("get-tiny-image") if block["type"] == "image")
        self.assertTrue(image["data"].startswith("iVBORw0KGgo"), image["data"][:20])
        structured = client.ask("call", tool="get-structured-content", arguments={"location": "New York"})
        self.assertEqual(json.loads(structured["content"][0]["text"]), structured["structuredContent"])
        wrong = client.ask("call", tool="get-sum", arguments={"a": "one", "b": 2})
        self.assertTrue(wrong["isError"], wrong)
        self.assertIn("Invalid arguments", wrong["content"][0]["text"])

    def follow_progress(self, client: Client) -> None:
        operation = {"tool": "trigger-long-running-operation", "arguments": {"duration": 0.6, "steps": 3}}
        progress = client.ask("call", progress=True, **operation)["progress"]
        # The last one comes together with the answer, and then the TypeScript SDKs forget whose it is.
        self.assertIn(progress, ([1, 2, 3], [1, 2]))
        operation["arguments"] = {"duration": 4, "steps": 8}
        cancelled = client.ask("cancel", limit=3, **operation)
        self.assertEqual(cancelled["progress"], 1)
        # Through the broker the server that goes on with it is replaced.
        self.assertEqual(self.text(client, "echo", message="again"), "Echo: again")

    def listen(self, client: Client) -> None:
        """What the server says of its own accord, once it knows what its client wants to hear."""
        self.text(client, "toggle-simulated-logging")
        self.text(client, "toggle-subscriber-updates")
        self.wait_heard(client, "notifications/message", level="info", data=f"Received Subscribe Resource request for URI: {DOCUMENT} ")
        wait_for("a simulated log message", HEARD_WITHIN, lambda: any(
            # "Info-level message", but "Alert level-message".
            re.split("[ -]", str(one["params"].get("data", "")))[0].lower() == one["params"].get("level")
            for one in client.ask("heard")
        ))
        self.wait_heard(client, "notifications/resources/updated", uri=DOCUMENT)

    def answer(self, client: Client) -> None:
        """What the server asks."""
        self.assertIn('"text": "forty-two"', self.text(client, "trigger-sampling-request", prompt="6 * 7"))
        asked = self.wait_heard(client, "sampling/createMessage", maxTokens=100)
        self.assertIn("6 * 7", asked["messages"][0]["content"]["text"])
        self.assertIn("- Name: Ada", self.text(client, "trigger-elicitation-request"))
        asked = self.wait_heard(client, "elicitation/create")
        self.assertEqual(asked["requestedSchema"]["required"], ["name"])
        self.assertIn(self.place.of_roots.as_uri(), self.text(client, "get-roots-list"))
        self.wait_heard(client, "roots/list")
        self.wait_heard(client, "notifications/message", data="Roots updated: 1 root(s) received from client")

    def talk(self, kind: str, client: Client) -> None:
        client.ask("level", level="debug")
        client.ask("subscribe", uri=DOCUMENT)
        self.ask_everything(client)
        self.listen(client)
        self.answer(client)
        self.follow_progress(client)

    def play(self, kind: str) -> None:
        """A client that can be asked, through the broker and directly."""
        client = self.through(kind, "asking", answers=self.answers())
        lists = client.ask("lists")
        # Neither a look nor a wish starts a server.
        client.ask("level", level="debug")
        client.ask("subscribe", uri=DOCUMENT)
        self.nothing_runs()
        self.talk(kind, client)
        said = {one["method"] for one in client.ask("heard")}
        self.assertFalse({method for method in said if method.endswith("list_changed")}, said)
        client.ask("unsubscribe", uri=DOCUMENT)
        self.end("asking", client)

        direct = self.direct(kind, "asking", answers=self.answers())
        self.assert_same_lists(direct.ask("lists"), lists)
        self.talk(kind, direct)
        direct.ask("close")

    def assert_same_lists(self, direct: dict, through: dict) -> None:
        """To the last member, but for what is left out on purpose."""
        for name, items in direct.items():
            if name == "tools":
                known = {tool["name"] for tool in through["tools"]}
                # Python clients declare elicitation by URL as well, which the catalog's capture did not.
                items = [tool for tool in items if tool["name"] not in ONLY_TASKS | {"trigger-url-elicitation"}]
                self.assertFalse(known & ONLY_TASKS)
                # The server adds some in the order of its own; clients do not rely on it.
                items, ours = (sorted(of, key=lambda tool: tool["name"]) for of in (items, through["tools"]))
                self.assertEqual(items, ours)
            else:
                self.assertEqual(items, through[name], name)

    def test_typescript_sdk_of_the_legacy_era(self) -> None:
        self.play("typescript 1")

    def test_typescript_sdk_of_both_eras(self) -> None:
        self.play("typescript 2")

    def test_python_sdk(self) -> None:
        self.play("python")

    def test_fastmcp(self) -> None:
        self.play("fastmcp")

    def test_mcp_remote_carries_a_stdio_client_to_the_broker(self) -> None:
        for kind in ("typescript 1", "python"):
            with self.subTest(kind):
                client = self.client(kind)
                client.ask(
                    "connect", answers=self.answers(),
                    command=["env", f"MCP_REMOTE_CONFIG_DIR={self.place.root}/mcp-remote", str(packages.NODE),
                             str(packages.MCP_REMOTE), self.url("asking"), "--transport", "http-only", "--silent"],
                )
                self.assertEqual(len(client.ask("lists")["prompts"]), 4)
                self.nothing_runs()
                self.talk(kind, client)
                # It leaves its session to the broker, as many clients do.
                self.end("asking", client, stop=True)

    def test_clients_of_2026_07_28_have_a_key_instead_of_a_session(self) -> None:
        for kind in DUAL:
            with self.subTest(kind):
                key = kind.replace(" ", "-")
                client = self.through(kind, "asking", key=key, answers=self.answers())
                self.assertEqual(len(client.ask("lists")["resources"]), 7)
                self.nothing_runs()
                self.ask_everything(client)
                # The server speaks the legacy era alone and asks in the middle of a call; the client is asked by a
                # result and comes back with the answer. For roots it asks some time after its start.
                self.text(client, "trigger-long-running-operation", duration=1, steps=2)
                self.wait_heard(client, "roots/list")
                asked = client.ask("call", tool="trigger-sampling-request", arguments={"prompt": "x"})
                self.assertIn("forty-two", asked["content"][0]["text"])
                self.assertIn("- Name: Ada", self.text(client, "trigger-elicitation-request"))
                self.follow_progress(client)
                # It has nothing to end.
                self.end("asking", client, stop=True)

    def test_a_catalog_is_what_the_server_shows_to_a_client_without_capabilities(self) -> None:
        client, direct = self.through("typescript 1", "everything"), self.direct("typescript 1", "everything")
        lists = client.ask("lists")
        self.assert_same_lists(direct.ask("lists"), lists)
        names = {tool["name"] for tool in lists["tools"]}
        self.assertEqual((len(names), names & NEED_CAPABILITIES), (12, set()))
        able = self.through("typescript 1", "everything", answers=self.answers())
        with self.assertRaises(ClientError) as refused:
            able.call("get-roots-list")
        self.assertIn("-32602", str(refused.exception))
        self.nothing_runs()
        # The session's server is the client's: it is asked for its roots, whatever the catalog has.
        self.assertEqual(self.text(able, "echo", message="x"), "Echo: x")
        self.wait_heard(able, "roots/list")
        self.assertEqual(self.text(client, "echo", message="y"), "Echo: y")
        direct.ask("close")
        self.end("everything", client, able, stop=True)

    def test_a_subscription_outlives_the_server_and_ends_when_told_to(self) -> None:
        client = self.through("typescript 1", "everything")
        client.ask("subscribe", uri=DOCUMENT)
        client.ask("level", level="emergency")
        self.text(client, "toggle-subscriber-updates")
        self.wait_heard(client, "notifications/resources/updated", uri=DOCUMENT)
        self.place.stop("everything")
        self.nothing_runs()
        before = len(client.ask("heard"))
        self.text(client, "toggle-subscriber-updates")
        wait_for("an update of the next server", HEARD_WITHIN, lambda: len(client.ask("heard")) > before)
        said = {one["method"] for one in client.ask("heard")}
        # At the level of emergencies it is not told of its own subscription.
        self.assertEqual(said, {"notifications/resources/updated"})
        client.ask("unsubscribe", uri=DOCUMENT)
        self.end("everything", client)

    def test_inspector(self) -> None:
        def inspect(*arguments: str) -> dict:
            command = [str(packages.INSPECTOR), "--cli", "--server-url", self.url("everything"), "--transport", "http"]
            path = f"{packages.NODE.parent}{os.pathsep}{os.environ['PATH']}"
            run = subprocess.run(
                [*command, "--quiet", "--format", "json", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=60, check=False, env={**os.environ, "PATH": path, "HOME": str(self.place.root)},
            )
            if run.returncode != 0:
                raise AssertionError(f"{arguments}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
            return json.loads(run.stdout)["result"]

        looks = {
            era: {
                "tools": ["--method", "tools/list"],
                "prompts": ["--method", "prompts/list"],
                "resources": ["--method", "resources/list"],
                "resourceTemplates": ["--method", "resources/templates/list"],
            }
            for era in ("legacy", "auto")
        }
        with ThreadPoolExecutor(4) as pool:
            found = {
                (era, member): pool.submit(inspect, *arguments, "--protocol-era", era)
                for era, all_of in looks.items()
                for member, arguments in all_of.items()
            }
            level = pool.submit(inspect, "--method", "logging/setLevel", "--log-level", "debug")
            greeting = pool.submit(inspect, "--method", "initialize")
            sizes = {key: len(one.result()[key[1]]) for key, one in found.items()}
            self.assertEqual(level.result(), {})
            self.assertEqual(greeting.result()["serverInfo"]["name"], "mcp-servers/everything")
        expected = {"tools": 12, "prompts": 4, "resources": 7, "resourceTemplates": 2}
        self.assertEqual(sizes, {(era, member): size for era in looks for member, size in expected.items()})
        self.nothing_runs()
        with ThreadPoolExecutor(3) as pool:
            echo = pool.submit(inspect, "--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=hi")
            prompt = pool.submit(
                inspect, "--method", "prompts/get", "--prompt-name", "args-prompt", "--prompt-args", "city=Paris"
            )
            document = pool.submit(inspect, "--method", "resources/read", "--uri", DOCUMENT)
            self.assertEqual(echo.result()["content"], [{"type": "text", "text": "Echo: hi"}])
            self.assertEqual(prompt.result()["messages"][0]["content"]["text"], "What's weather in Paris?")
            self.assertEqual(document.result()["contents"][0]["uri"], DOCUMENT)
        # Not every way that it ends ends its sessions.
        self.end("everything", stop=True)

    # Other servers.

    def call_both_ways(self, kind: str, backend: str, tool: str, arguments: dict) -> dict:
        """A call whose answer is the same through the broker and without it."""
        client, direct = self.through(kind, backend), self.direct(kind, backend)
        self.assert_same_lists({"tools": direct.ask("tools")}, {"tools": client.ask("tools")})
        self.nothing_runs()
        result = client.ask("call", tool=tool, arguments=arguments)
        alone = direct.ask("call", tool=tool, arguments=arguments)
        # Directly, Python's servers and clients agree on 2026-07-28, whose results say which server they are from.
        alone.pop("_meta", None)
        self.assertEqual(result, alone)
        self.assertFalse(result.get("isError"), result)
        direct.ask("close")
        self.end(backend, client)
        return result

    def test_server_time(self) -> None:
        noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        for kind in ("typescript 1", "python"):
            result = self.call_both_ways(kind, "time", "convert_time", noon)
            self.assertIn('"time_difference": "+9.0h"', result["content"][0]["text"])

    def test_server_git(self) -> None:
        repository = {"repo_path": str(self.place.repository)}
        for kind in ("typescript 1", "python"):
            self.assertIn("untracked.txt", self.call_both_ways(kind, "git", "git_status", repository)["content"][0]["text"])
        result = self.call_both_ways("typescript 2", "git", "git_log", repository)
        self.assertIn("the first and only one", result["content"][0]["text"])

    def test_server_memory_remembers_beyond_its_process(self) -> None:
        ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
        one = self.through("typescript 1", "memory")
        one.call("create_entities", entities=[ada])
        self.end("memory", one, stop=True)
        other = self.through("python", "memory")
        graph = other.ask("call", tool="read_graph", arguments={})
        self.assertEqual(graph["structuredContent"], {"entities": [ada], "relations": []})
        self.end("memory", other)

    def test_server_filesystem_serves_the_roots_of_its_client(self) -> None:
        """Its first call is the one that it was started for: it is to know its roots by then."""
        ours, arguments = self.place.of_roots, self.place.of_arguments
        for kind in DRIVERS:
            with self.subTest(kind):
                client = self.through(kind, "filesystem", answers=self.answers())
                self.assertEqual(len(client.ask("tools")), 14)
                self.nothing_runs()
                self.assertEqual(self.text(client, "list_directory", path=str(ours)), "[FILE] of-roots.txt")
                denied = client.ask("call", tool="list_directory", arguments={"path": str(arguments)})
                self.assertTrue(denied["isError"], denied)
                self.end("filesystem", client)

    def test_server_filesystem_without_roots_serves_its_arguments(self) -> None:
        file = self.place.of_arguments / "of-arguments.txt"
        result = self.call_both_ways("typescript 1", "filesystem", "read_text_file", {"path": str(file)})
        self.assertEqual(result["content"][0]["text"], file.read_text())


if __name__ == "__main__":
    packages.install()
    print(f"real clients and {len(SERVERS)} servers with {BINARY}", flush=True)
    summary.run("clients")
