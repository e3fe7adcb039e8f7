"""Health endpoints `/healthz`, `/livez` and `/readyz`: each runs checks that must all pass.

    ?verbose              include the result of each check
    ?exclude=NAME         skip a check
    /readyz/NAME          run one check

The reason of a failure is only logged, because these endpoints are public.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.responses import ApiResponse, PathHandler
from tapestry.apiserver.core.storage_codec import encode_for_storage
from tapestry.apiserver.core.store import Key, StorageError, Store, VersionConflict
from tapestry.process.logs import logger

log = logger(__name__)

TEXT_PLAIN = "text/plain; charset=utf-8"
HEADERS = {"X-Content-Type-Options": "nosniff"}

STORAGE_CHECK_TIMEOUT = 2.0
"""Seconds that the storage check may take."""

Check = Callable[[], Awaitable[str | None]]
"""Return an error message, or None."""


async def ping() -> None:
    """Checks that always pass: a response shows that the server runs."""


@dataclass(frozen=True)
class StorageCheck:
    """A check that writes are durable. After a failed write, it tries a write, since the storage may have recovered."""

    store: Store
    namespace_info: ResourceInfo

    async def __call__(self) -> str | None:
        try:
            async with asyncio.timeout(STORAGE_CHECK_TIMEOUT):
                await self.store.wait_for_latest()
                if self.store.write_error:
                    await self.probe_write()
        except (StorageError, TimeoutError) as error:
            return str(error) or "the storage check timed out"
        return None

    async def probe_write(self) -> None:
        """Write an existing object again."""
        head = self.store.head(*(key := Key("namespaces", "", "kube-system")))
        if head is not None:
            try:
                await self.store.put(key, head, encode_for_storage(self.namespace_info, msgspec.json.decode(head.raw)))
            except VersionConflict:
                return  # a concurrent write shows that writes work


@dataclass(frozen=True)
class HealthHandlers:
    """Handlers of the health endpoints. Checks run in order."""

    checks: Mapping[str, Check]

    def path_handlers(self) -> Mapping[str, PathHandler]:
        return {"healthz": self.handle, "livez": self.handle, "readyz": self.handle}

    async def handle(self, call: Call) -> ApiResponse:
        endpoint, _, name = call.path.strip("/").partition("/")
        checks = self.checks
        if name and name not in checks:
            raise api_errors.path_not_found()
        if name:
            failed = await failed_checks(endpoint, {name: checks[name]})
            return (
                text_response(500, f"internal server error: {failed[name]}\n") if failed else text_response(200, "ok")
            )
        return await health_response(endpoint, checks, excluded_checks(call), is_verbose="verbose" in call.query)


async def health_response(
    page: str, checks: Mapping[str, Check], excluded_names: Sequence[str], *, is_verbose: bool
) -> ApiResponse:
    failures = await failed_checks(page, {name: check for name, check in checks.items() if name not in excluded_names})
    lines = []
    for name in checks:
        outcome = "excluded: ok" if name in excluded_names else "failed: reason withheld" if name in failures else "ok"
        lines.append(f"[{'-' if name in failures else '+'}]{name} {outcome}\n")
    if unknown := sorted({name for name in excluded_names if name not in checks}):
        names = ", ".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {names}\n")
    if failures:
        return text_response(500, f"{''.join(lines)}{page} check failed\n")
    return text_response(200, f"{''.join(lines)}{page} check passed\n" if is_verbose else "ok")


async def failed_checks(page: str, checks: Mapping[str, Check]) -> dict[str, str]:
    failures = {name: error for name, check in checks.items() if (error := await check()) is not None}
    if failures:
        log.warning("health check failed", page=page, checks=failures)
    return failures


def excluded_checks(call: Call) -> list[str]:
    """Return the names of excluded checks; the parameter may be repeated."""
    return [value for name, value in parse_qsl(call.uri.partition("?")[2]) if name == "exclude"]


def text_response(status: int, body: str) -> ApiResponse:
    return ApiResponse(status, body.encode(), TEXT_PLAIN, HEADERS)
