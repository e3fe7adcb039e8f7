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

from tapestry.apiserver import api_errors
from tapestry.apiserver.requests import Call
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.server import ApiResponse, PathHandler
from tapestry.apiserver.storage.log import Key, StorageError
from tapestry.apiserver.storage.store import Store, VersionConflict
from tapestry.apiserver.verbs import encode_for_storage
from tapestry.process.logs import logger

log = logger(__name__)

TEXT_PLAIN = "text/plain; charset=utf-8"
HEADERS = {"X-Content-Type-Options": "nosniff"}

STORAGE_CHECK_TIMEOUT = 2.0
"""Seconds that a trial may take."""

Check = Callable[[], Awaitable[str | None]]
"""What is wrong, or None."""


async def ping() -> None:
    """Whoever gets an answer at all knows that this is well."""


@dataclass(frozen=True)
class StorageCheck:
    """A check: whether writes are kept.  Where the last one was not, it is tried out: there may be room again."""

    store: Store
    namespace_info: ResourceInfo

    async def __call__(self) -> str | None:
        try:
            async with asyncio.timeout(STORAGE_CHECK_TIMEOUT):
                await self.store.wait_for_latest()
                if self.store.write_error:
                    await self.probe_write()
        except (StorageError, TimeoutError) as error:
            return str(error) or "the storage does not answer"
        return None

    async def probe_write(self) -> None:
        """Write what is there already."""
        head = self.store.head(*(key := Key("namespaces", "", "kube-system")))
        if head is not None:
            try:
                await self.store.put(key, head, encode_for_storage(self.namespace_info, msgspec.json.decode(head.raw)))
            except VersionConflict:
                return  # somebody else's write is on its way, and tells us as much


@dataclass(frozen=True)
class HealthHandlers:
    """The pages of health.  Checks are made in their order."""

    checks: Mapping[str, Check]

    def path_handlers(self) -> Mapping[str, PathHandler]:
        return {"healthz": self.handle, "livez": self.handle, "readyz": self.handle}

    async def handle(self, call: Call) -> ApiResponse:
        page, _, name = call.path.strip("/").partition("/")
        checks = self.checks
        if name and name not in checks:
            raise api_errors.path_not_found()
        if name:
            wrong = await failed_checks(page, {name: checks[name]})
            return text_response(500, f"internal server error: {wrong[name]}\n") if wrong else text_response(200, "ok")
        return await health_response(page, checks, excluded_checks(call), is_verbose="verbose" in call.query)


async def health_response(
    page: str, checks: Mapping[str, Check], excluded_names: Sequence[str], *, is_verbose: bool
) -> ApiResponse:
    wrong = await failed_checks(page, {name: check for name, check in checks.items() if name not in excluded_names})
    lines = []
    for name in checks:
        outcome = "excluded: ok" if name in excluded_names else "failed: reason withheld" if name in wrong else "ok"
        lines.append(f"[{'-' if name in wrong else '+'}]{name} {outcome}\n")
    if unknown := sorted({name for name in excluded_names if name not in checks}):
        names = ", ".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}\n")
    if wrong:
        return text_response(500, f"{''.join(lines)}{page} check failed\n")
    return text_response(200, f"{''.join(lines)}{page} check passed\n" if is_verbose else "ok")


async def failed_checks(page: str, checks: Mapping[str, Check]) -> dict[str, str]:
    found = {name: wrong for name, check in checks.items() if (wrong := await check()) is not None}
    if found:
        log.warning("unhealthy", page=page, checks=found)
    return found


def excluded_checks(call: Call) -> list[str]:
    """The checks to leave out; the parameter may come more than once."""
    return [value for name, value in parse_qsl(call.uri.partition("?")[2]) if name == "exclude"]


def text_response(status: int, body: str) -> ApiResponse:
    return ApiResponse(status, body.encode(), TEXT_PLAIN, HEADERS)
