"""An MCP client on the Python SDK, driven like clients/typescript.mjs: a line of JSON in, a line of JSON out.

Its mode is the SDK's default: it tries the modern era first and falls back to `initialize`.
"""

import asyncio
import logging
from contextlib import AsyncExitStack

import commands
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


class Driver:
    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.client: Client

    async def connect(self, command: dict) -> dict:
        if "headers" in command:
            http_client = create_mcp_http_client(headers=command["headers"])
            target = streamable_http_client(command["url"], http_client=http_client)
        else:
            target = command.get("url") or StdioServerParameters(
                command=command["command"][0], args=command["command"][1:]
            )
        self.client = await self.stack.enter_async_context(Client(target, read_timeout_seconds=120))
        return {"protocol": self.client.protocol_version}

    async def list(self, command: dict) -> list:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def call(self, command: dict) -> dict:
        result = await self.client.call_tool(command["tool"], command["arguments"])
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def close(self, command: dict) -> None:
        await self.stack.aclose()


logging.basicConfig(level=logging.ERROR)
asyncio.run(commands.answer(Driver()))
