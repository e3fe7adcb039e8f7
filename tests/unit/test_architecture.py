"""The flows of ARCHITECTURE.md: each entry exists, and a traced run calls the entries in the documented order."""

import ast
import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import tapestry
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.client.watch import wait_for
from tapestry.controller.testing import run
from tapestry.kube.resources import NODES

from .syncer.world import new_world

ROOT = Path(__file__).parents[2]
SOURCE = Path(tapestry.__file__).parent
MAP = (ROOT / "ARCHITECTURE.md").read_text()
STARTUP_SECONDS = 30.0
"""Virtual time after which a syncer that has started has nothing left to do."""
TIMEOUT = 10.0


@dataclass(frozen=True)
class Flow:
    title: str
    entries: list[str]
    """`file:function` in the order of the list."""
    files: list[str]
    """The files that a reader needs, as the flow lists them."""


def flow(text: str) -> Flow:
    title, _, body = text.partition("\n")
    listed = re.search(r"^Files: (.*?)(?:\n\n|\Z)", body, re.MULTILINE | re.DOTALL)
    assert listed is not None, title
    return Flow(title, re.findall(r"^\d+\. `([^`]+)` \w", body, re.MULTILINE), re.findall(r"`([^`]+)`", listed[1]))


FLOWS = [flow(text) for text in re.split(r"^### Flow \d: ", MAP.partition("\n## Glossary")[0], flags=re.MULTILINE)[1:]]
ENTRIES = [entry for each in FLOWS for entry in each.entries]


@cache
def functions_in(path: Path) -> set[str]:
    """The qualified names of the functions and methods of a module."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{node.name}"

    return set(names(ast.parse(path.read_text()).body, ""))


def test_the_map_has_three_flows() -> None:
    assert [len(each.entries) > 5 for each in FLOWS] == [True, True, True]


@pytest.mark.parametrize("entry", ENTRIES)
def test_flow_entry_exists(entry: str) -> None:
    file, _, function = entry.partition(":")
    assert function in functions_in(SOURCE / file)


@pytest.mark.parametrize(("number", "limit"), [(0, 8), (1, 9), (2, 11)])
def test_flow_needs_few_files(number: int, limit: int) -> None:
    used = {entry.partition(":")[0] for entry in FLOWS[number].entries}
    assert set(FLOWS[number].files) == used
    assert len(used) <= limit


def test_glossary_has_at_most_twenty_terms() -> None:
    glossary = MAP.partition("\n## Glossary")[2].partition("\n## ")[0]
    terms = re.findall(r"^\| ([a-z ]+) \| [A-Z].*\. \|$", glossary, re.MULTILINE)
    assert len(terms) == len(set(terms))
    assert 10 < len(terms) <= 20


# -- traced runs


@dataclass
class Trace:
    """The functions that were called, in the order of their first calls."""

    startup: dict[CodeType, None] = field(default_factory=dict)
    calls: dict[CodeType, None] = field(default_factory=dict)

    def end_startup(self) -> None:
        """Start anew: earlier calls count only for functions that are not called again."""
        self.startup, self.calls = self.calls, {}

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.calls.setdefault(frame.f_code)

    def among(self, entries: list[str]) -> list[str]:
        """Those of the entries that were called, in the order of the calls."""
        codes = [*(code for code in self.startup if code not in self.calls), *self.calls]
        called = [f"{code.co_filename.removeprefix(f'{SOURCE}/')}:{code.co_qualname}" for code in codes]
        return [entry for entry in called if entry in entries]


@contextmanager
def traced() -> Iterator[Trace]:
    """Record calls of this thread and of threads that start in the block."""
    trace = Trace()
    threading.setprofile(trace.record)
    sys.setprofile(trace.record)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


async def trace_node() -> Trace:
    """A syncer is running, and a physical node is added."""
    world = await new_world()
    with traced() as trace:
        async with world.syncer():
            await asyncio.sleep(STARTUP_SECONDS)
            trace.end_startup()
            await world.add_node("n2")
            await wait_for(world.virtual, NODES, "vnode-east-n2", until=bool, timeout=TIMEOUT)
    return trace


async def trace_pod() -> Trace:
    """A syncer is running, and a pod is bound to its virtual node and runs."""
    world = await new_world()
    with traced() as trace:
        async with world.syncer():
            await asyncio.sleep(STARTUP_SECONDS)
            trace.end_startup()
            await world.run_pod()
    return trace


async def trace_post(folder: Path) -> Trace:
    """A client watches pods, and another one creates a pod."""
    config = ApiServerConfig(
        file_rootpath=str(folder),
        secure_address="",
        local_address="127.0.0.1:0",
        authn_allow_localhost=True,
        pod_accounts=False,
    )
    pods = "/api/v1/namespaces/default/pods"
    pod = {"metadata": {"name": "work"}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}
    with traced() as trace:
        async with (
            asyncio.timeout(TIMEOUT),
            run_apiserver(config) as running,
            response(running.addresses["local"], "GET", f"{pods}?watch=true") as events,
        ):
            trace.end_startup()
            async with response(running.addresses["local"], "POST", pods, pod):
                assert b'"ADDED"' in await events.readuntil(b"}\n")
    return trace


@asynccontextmanager
async def response(address: str, method: str, path: str, body: Any = None) -> AsyncIterator[asyncio.StreamReader]:
    """The body of a successful response."""
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    content = json.dumps(body).encode() if body is not None else b""
    headers = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    writer.write(f"{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + content)
    try:
        assert re.match(rb"HTTP/1.1 20[01] ", await reader.readuntil(b"\r\n\r\n"))
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


def test_traced_node_follows_the_map() -> None:
    assert run(trace_node()).among(FLOWS[0].entries) == FLOWS[0].entries


def test_traced_pod_follows_the_map() -> None:
    assert run(trace_pod()).among(FLOWS[1].entries) == FLOWS[1].entries


async def test_traced_post_follows_the_map(tmp_path: Path) -> None:
    assert (await trace_post(tmp_path)).among(FLOWS[2].entries) == FLOWS[2].entries
