"""A client on the Python SDK (`python.py mcp`) or on fastmcp (`python.py fastmcp`), driven like drivers/typescript.mjs.

Their mode is the default of both: they try the modern era first and fall back to `initialize`.
"""

import asyncio
import contextlib
import logging
import os
import sys
import warnings
from pathlib import Path

import mcp_types as types

sys.path.append(str(Path(__file__).resolve().parents[2] / "e2e/clients"))

import commands  # noqa: E402


class Mcp:
    """Names of the Python SDK."""

    def make(self, command: dict, hear, answers: dict | None):
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters

        target = command.get("url") or StdioServerParameters(
            command=command["command"][0], args=command["command"][1:], env=dict(os.environ)
        )

        async def logged(params: types.LoggingMessageNotificationParams) -> None:
            hear("notifications/message", params)

        async def told(message: object) -> None:
            # Log messages come here as well.
            if not isinstance(message, Exception | types.LoggingMessageNotification):
                hear(message.method, getattr(message, "params", None))

        async def list_roots(context: object) -> types.ListRootsResult:
            hear("roots/list", None)
            return types.ListRootsResult.model_validate({"roots": answers["roots"]})

        async def sample(context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
            hear("sampling/createMessage", params)
            content = types.TextContent(type="text", text=answers["sampling"])
            return types.CreateMessageResult(role="assistant", model="scripted", content=content)

        async def elicit(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
            hear("elicitation/create", params)
            return types.ElicitResult(action="accept", content=answers["elicitation"])

        able = {"list_roots_callback": list_roots, "sampling_callback": sample, "elicitation_callback": elicit}
        return Client(
            target, read_timeout_seconds=60, logging_callback=logged, message_handler=told, **(able if answers else {})
        )

    def session(self, client):
        return client.session

    def protocol(self, client) -> str:
        return client.protocol_version

    async def call(self, client, tool: str, arguments: dict, on_progress):
        return await client.call_tool(tool, arguments, progress_callback=on_progress)

    async def tools(self, client) -> list:
        return (await client.list_tools()).tools

    async def lists(self, client) -> dict:
        return {
            "tools": (await client.list_tools()).tools,
            "prompts": (await client.list_prompts()).prompts,
            "resources": (await client.list_resources()).resources,
            "resourceTemplates": (await client.list_resource_templates()).resource_templates,
        }

    async def prompt(self, client, name: str, arguments: dict):
        return await client.get_prompt(name, arguments)

    async def read(self, client, uri: str):
        return await client.read_resource(uri)

    async def complete(self, client, ref, argument: dict, context: dict | None):
        return (await client.complete(ref, argument, context)).completion


class FastMcp:
    """Names of fastmcp."""

    def make(self, command: dict, hear, answers: dict | None):
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport

        target = command.get("url") or StdioTransport(
            command=command["command"][0], args=command["command"][1:], env=dict(os.environ), keep_alive=False
        )

        async def logged(params: types.LoggingMessageNotificationParams) -> None:
            hear("notifications/message", params)

        async def told(message: object) -> None:
            if not isinstance(message, Exception | types.LoggingMessageNotification):
                hear(message.method, getattr(message, "params", None))

        async def list_roots(context: object) -> list:
            hear("roots/list", None)
            return [types.Root.model_validate(root) for root in answers["roots"]]

        async def sample(messages: list, params: types.CreateMessageRequestParams, context: object) -> str:
            hear("sampling/createMessage", params)
            return answers["sampling"]

        async def elicit(message: str, response_type: object, params: types.ElicitRequestParams, context: object) -> dict:
            hear("elicitation/create", params)
            return answers["elicitation"]

        able = {"roots": list_roots, "sampling_handler": sample, "elicitation_handler": elicit}
        return Client(target, timeout=60, log_handler=logged, message_handler=told, **(able if answers else {}))

    def session(self, client):
        return client.session

    def protocol(self, client) -> str:
        return client.session.protocol_version

    async def call(self, client, tool: str, arguments: dict, on_progress):
        return await client.call_tool_mcp(tool, arguments, progress_handler=on_progress)

    async def tools(self, client) -> list:
        return await client.list_tools()

    async def lists(self, client) -> dict:
        return {
            "tools": await client.list_tools(),
            "prompts": await client.list_prompts(),
            "resources": await client.list_resources(),
            "resourceTemplates": await client.list_resource_templates(),
        }

    async def prompt(self, client, name: str, arguments: dict):
        return await client.get_prompt_mcp(name, arguments)

    async def read(self, client, uri: str):
        return await client.read_resource_mcp(uri)

    async def complete(self, client, ref, argument: dict, context: dict | None):
        return await client.complete(ref, argument, context)


def plain(value: object) -> object:
    """As it was on the wire."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value


class Driver:
    def __init__(self, names: Mcp | FastMcp) -> None:
        self.names = names
        self.stack = contextlib.AsyncExitStack()
        self.notes: list[dict] = []
        self.client = None

    def hear(self, method: str, params: object) -> None:
        self.notes.append({"method": method, "params": plain(params) or {}})

    @property
    def session(self):
        return self.names.session(self.client)

    async def connect(self, command: dict) -> dict:
        self.client = await self.stack.enter_async_context(
            self.names.make(command, self.hear, command.get("answers"))
        )
        session = self.session
        return {
            "protocol": self.names.protocol(self.client),
            "server": plain(session.server_info),
            "instructions": session.instructions,
            "capabilities": plain(session.server_capabilities),
        }

    async def tools(self, command: dict) -> list:
        return plain(await self.names.tools(self.client))

    async def lists(self, command: dict) -> dict:
        return plain(await self.names.lists(self.client))

    async def call(self, command: dict) -> dict:
        seen = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        on = on_progress if command.get("progress") else None
        result = await self.names.call(self.client, command["tool"], command["arguments"], on)
        return {**plain(result), "progress": seen}

    async def cancel(self, command: dict) -> dict:
        """A call that is given up at its first sign of progress."""
        begun = asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.create_task(self.names.call(self.client, command["tool"], command["arguments"], on_progress))
        await asyncio.wait_for(begun.wait(), 60)
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            return {"progress": 1, "error": "cancelled"}
        raise RuntimeError("the call was answered although it was cancelled")

    async def prompt(self, command: dict) -> dict:
        return plain(await self.names.prompt(self.client, command["name"], command["arguments"]))

    async def read(self, command: dict) -> dict:
        return plain(await self.names.read(self.client, command["uri"]))

    async def complete(self, command: dict) -> dict:
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        ref = kinds[command["ref"]["type"]].model_validate(command["ref"])
        return plain(await self.names.complete(self.client, ref, command["argument"], command.get("context")))

    async def level(self, command: dict) -> None:
        await self.client.set_logging_level(command["level"])

    async def subscribe(self, command: dict) -> None:
        await self.session.subscribe_resource(command["uri"])

    async def unsubscribe(self, command: dict) -> None:
        await self.session.unsubscribe_resource(command["uri"])

    async def heard(self, command: dict) -> list:
        return self.notes

    async def close(self, command: dict) -> None:
        await self.stack.aclose()


logging.basicConfig(level=logging.CRITICAL)
# What 2026-07-28 has no more is what is tested.
warnings.simplefilter("ignore")
asyncio.run(commands.answer(Driver({"mcp": Mcp, "fastmcp": FastMcp}[sys.argv[1]]())))
