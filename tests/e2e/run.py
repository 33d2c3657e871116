"""End to end: real clients, the real @playwright/mcp, a real Chromium, and the process table as the judge.

`tests/run.sh` installs what is needed and runs this. By hand:

    LAZY_MCP_BINARY=target/debug/lazy-mcp LAZY_MCP_TEST_DEPS=$PWD/tests/.deps python3 tests/e2e/run.py [-v] [NAME…]
"""

import base64
import unittest

import clients
import pages
import summary
from broker import BINARY, Broker, Setup
from processes import describe, owned, stop, wait_for, wait_until_none

# Long enough to look at two open browsers on a slow machine, short enough to wait for.
IDLE_SECONDS = 6
# From the last call to the proof: idle time, a polite close, the sweep.
GONE_WITHIN = IDLE_SECONDS + 20
# DESIGN.md, invariant 6.
EMPTY_AFTER_KILL = 5
BACKENDS = ("playwright", "chrome-devtools", "agentation")


class EndToEnd(unittest.TestCase):
    def setUp(self) -> None:
        server, self.site = pages.serve()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

    def start(self) -> Broker:
        setup = Setup(IDLE_SECONDS)
        self.addCleanup(setup.folder.cleanup)
        self.addCleanup(self.nothing_runs_in, str(setup.root))
        return Broker(setup)

    def nothing_runs_in(self, folder: str) -> None:
        left = owned(-1, folder)
        self.assertFalse(left, f"left after the test:\n{describe(left)}")

    def connect(self, kind: str, broker: Broker, backend: str = "playwright") -> clients.Client:
        client = self.enterContext(clients.BOTH[kind]())
        client.ask("connect", url=f"{broker.url}/{backend}/mcp")
        return client

    def open_page(self, client: clients.Client, page: str) -> None:
        """Opens `page`, and sees it in words and as a picture."""
        title, heading = pages.PAGES[page]
        client.call("browser_navigate", url=self.site + page)
        self.see(client, page)
        picture = next(block for block in client.call("browser_take_screenshot") if block["type"] == "image")
        head = base64.b64decode(picture["data"])[:8]
        self.assertTrue(head.startswith((b"\x89PNG", b"\xff\xd8")), f"{title}: {picture['mimeType']} {head!r}")

    def see(self, client: clients.Client, page: str) -> None:
        """The browser of `client` shows `page` and no other."""
        text = str(client.call("browser_snapshot"))
        for other, (_, heading) in pages.PAGES.items():
            self.assertEqual(heading in text, other == page, text)

    def browsers(self, broker: Broker, count: int) -> set[int]:
        found = [process for process in broker.below() if process.is_browser]
        self.assertEqual(len(found), count, describe(found))
        return {process.pid for process in found}

    def test_looking_at_every_backend_starts_nothing(self) -> None:
        with self.start() as broker:
            for backend in BACKENDS:
                for kind in clients.BOTH:
                    client = self.connect(kind, broker, backend)
                    self.assertGreater(len(client.ask("list")), 5)
            running = broker.below()
            self.assertFalse(running, describe(running))
            self.assertEqual(broker.status()["totals"]["live_instances"], 0)
            self.assertEqual(broker.terminate(), 0)

    def test_both_clients_use_the_tools_of_operators(self) -> None:
        with self.start() as broker:
            token = (broker.setup.root / ".local/state/lazy-mcp/admin.token").read_text()
            for kind in clients.BOTH:
                with clients.BOTH[kind]() as client:
                    url, headers = f"{broker.url}/admin/mcp", {"authorization": f"Bearer {token}"}
                    client.ask("connect", url=url, headers=headers)
                    self.assertIn("recover_instance", client.ask("list"))
                    # Both SDKs hold a result against the schema that its tool promises.
                    for tool, arguments in (
                        ("broker_status", {}),
                        ("list_backends", {}),
                        ("inspect_backend", {"backend": "playwright"}),
                        ("stop_instance", {"backend": "playwright"}),
                        ("recover_instance", {"backend": "playwright"}),
                    ):
                        result = client.ask("call", tool=tool, arguments=arguments)
                        self.assertFalse(result.get("isError"), result)
                        self.assertTrue(result["structuredContent"], result)
                    wrong = client.ask("call", tool="stop_instance", arguments={"backend": "playwrite"})
                    self.assertTrue(wrong["isError"], wrong)
            self.assertFalse(broker.below())
            self.assertEqual(broker.terminate(), 0)

    def test_two_sessions_have_a_browser_each_and_all_is_gone_when_idle(self) -> None:
        with self.start() as broker:
            one, two = self.connect("typescript", broker), self.connect("python", broker)
            self.open_page(one, "/one")
            self.open_page(two, "/two")
            self.see(one, "/one")
            first = self.browsers(broker, 2)
            before = broker.owned()
            self.assertGreater(len(before), 15, describe(before))

            wait_until_none("two idle browsers", GONE_WITHIN, lambda: broker.owned(before))
            status = wait_for("/status to say so", 5, lambda: self.at_zero(broker))
            self.assertTrue(all(i["state"] == "stopped" for i in self.instances(status)), status)

            # The sessions are still good; they get new browsers, and different pids.
            self.open_page(one, "/two")
            self.open_page(two, "/one")
            self.assertFalse(first & self.browsers(broker, 2))
            running = broker.owned()
            self.assertEqual(broker.terminate(), 0)
            wait_until_none("SIGTERM of the broker", 0.5, lambda: broker.owned(running))

    def test_a_killed_broker_takes_two_browsers_along_and_sessions_survive(self) -> None:
        with self.start() as broker:
            one, two = self.connect("typescript", broker), self.connect("python", broker)
            self.open_page(one, "/one")
            self.open_page(two, "/two")
            self.browsers(broker, 2)
            before = broker.owned()
            broker.kill()
            took = wait_until_none("kill -9 of the broker", EMPTY_AFTER_KILL, lambda: broker.owned(before))
            print(f"{len(before)} processes gone {took:.2f} s after kill -9 of the broker")
        with Broker(broker.setup) as again:
            self.assertEqual(again.url, broker.url)
            self.assertFalse(again.below(), "a restart starts nothing")
            self.open_page(one, "/two")
            self.open_page(two, "/one")
            for client in (one, two):
                client.ask("close")
            wait_until_none("the end of both sessions", GONE_WITHIN, again.owned)
            self.assertEqual(again.terminate(), 0)

    def test_a_stopped_browser_goes_when_idle_and_the_probe_passes_after_it(self) -> None:
        with self.start() as broker:
            client = self.connect("typescript", broker)
            self.open_page(client, "/one")
            self.browsers(broker, 1)
            before = broker.owned()
            chromium = [process for process in before if process.is_of_browser]
            self.assertGreater(len(chromium), 7, describe(before))
            stop(chromium)
            took = wait_until_none("an idle browser that stands still", GONE_WITHIN, lambda: broker.owned(before))
            print(f"{len(before)} processes, {len(chromium)} of them stopped, gone {took:.2f} s after the last call")
            status = wait_for("/status to say so", 5, lambda: self.at_zero(broker))
            playwright = next(backend for backend in status["backends"] if backend["name"] == "playwright")
            self.assertTrue(playwright["last_cleanup"]["ok"], playwright)
            self.assertEqual((playwright["starts"], playwright["proofs"]), (1, 1), playwright)

            run = broker.setup.run("probe", "playwright")
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            running = broker.owned()
            self.assertFalse(running, describe(running))
            self.assertEqual(broker.terminate(), 0)

    @staticmethod
    def instances(status: dict) -> list[dict]:
        return [instance for backend in status["backends"] for instance in backend["instances"]]

    def at_zero(self, broker: Broker) -> dict | None:
        status = broker.status()
        totals = status["totals"]
        return status if totals["live_instances"] == 0 and totals["owned_processes"] == 0 else None


if __name__ == "__main__":
    print(f"end to end with {BINARY}", flush=True)
    summary.run("e2e")
