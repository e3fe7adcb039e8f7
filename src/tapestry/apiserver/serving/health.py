"""Health: `/healthz`, `/livez` and `/readyz`, each a list of checks that must all pass.

    ?verbose              says how each went
    ?exclude=NAME         leaves one out
    /readyz/NAME          is one alone

Why a check failed is for the log: these pages are for everybody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.requests import Call
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Answer, Page
from tapestry.apiserver.storage.log import Key, LogError
from tapestry.apiserver.storage.store import Stale, Store
from tapestry.apiserver.verbs import making
from tapestry.process.logs import logger

log = logger(__name__)

TEXT = "text/plain; charset=utf-8"
HEADERS = {"X-Content-Type-Options": "nosniff"}

PATIENCE = 2.0
"""Seconds that a trial may take."""

Check = Callable[[], Awaitable[str | None]]
"""What is wrong, or None."""


async def ping() -> None:
    """Whoever gets an answer at all knows that this is well."""


@dataclass(frozen=True)
class Durability:
    """A check: whether writes are kept.  Where the last one was not, it is tried out: there may be room again."""

    store: Store
    namespaces: Row

    async def __call__(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self.store.wait_for_latest()
                if self.store.failure:
                    await self.write()
        except (LogError, TimeoutError) as error:
            return str(error) or "the storage does not answer"
        return None

    async def write(self) -> None:
        """Write what is there already."""
        head = self.store.head(*(key := Key("namespaces", "", "kube-system")))
        if head is not None:
            try:
                await self.store.put(key, head, making(self.namespaces, msgspec.json.decode(head.raw)))
            except Stale:
                return  # somebody else's write is on its way, and tells us as much


@dataclass(frozen=True)
class Health:
    """The pages of health.  Checks are made in their order."""

    checks: Mapping[str, Check]

    def pages(self) -> Mapping[str, Page]:
        return {"healthz": self.answer, "livez": self.answer, "readyz": self.answer}

    async def answer(self, call: Call) -> Answer:
        page, _, name = call.path.strip("/").partition("/")
        checks = self.checks
        if name and name not in checks:
            raise refusals.no_such_path()
        if name:
            wrong = await failed(page, {name: checks[name]})
            return text(500, f"internal server error: {wrong[name]}\n") if wrong else text(200, "ok")
        return await told(page, checks, excluded(call), is_verbose="verbose" in call.query)


async def told(page: str, checks: Mapping[str, Check], left_out: Sequence[str], *, is_verbose: bool) -> Answer:
    wrong = await failed(page, {name: check for name, check in checks.items() if name not in left_out})
    lines = []
    for name in checks:
        outcome = "excluded: ok" if name in left_out else "failed: reason withheld" if name in wrong else "ok"
        lines.append(f"[{'-' if name in wrong else '+'}]{name} {outcome}\n")
    if unknown := sorted({name for name in left_out if name not in checks}):
        names = ", ".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}\n")
    if wrong:
        return text(500, f"{''.join(lines)}{page} check failed\n")
    return text(200, f"{''.join(lines)}{page} check passed\n" if is_verbose else "ok")


async def failed(page: str, checks: Mapping[str, Check]) -> dict[str, str]:
    found = {name: wrong for name, check in checks.items() if (wrong := await check()) is not None}
    if found:
        log.warning("unhealthy", page=page, checks=found)
    return found


def excluded(call: Call) -> list[str]:
    """The checks to leave out; the parameter may come more than once."""
    return [value for name, value in parse_qsl(call.uri.partition("?")[2]) if name == "exclude"]


def text(status: int, body: str) -> Answer:
    return Answer(status, body.encode(), TEXT, HEADERS)
