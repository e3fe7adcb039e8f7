"""An API server as a process: its store, its rights, its listeners, and an orderly end."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tapestry.apiserver import admission, bootstrap, defaults
from tapestry.apiserver.apply import Ownership
from tapestry.apiserver.authentication import Authenticator, Way, by_certificate, by_place, token_file
from tapestry.apiserver.certificates import Authority, server_context
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.customs import DefinitionRules, Definitions
from tapestry.apiserver.http import Listener, serve
from tapestry.apiserver.openapi import Documents
from tapestry.apiserver.pipeline import Pipeline, TypedReading
from tapestry.apiserver.rbac import Authorizer, Roles
from tapestry.apiserver.reviews import Reviews
from tapestry.apiserver.rows import Rows, built_in
from tapestry.apiserver.server import Authorize, Server, everybody_may
from tapestry.apiserver.service_accounts import Accounts, key_in
from tapestry.apiserver.shapes import Shapes
from tapestry.apiserver.storage.file import FileLog
from tapestry.apiserver.storage.log import Log
from tapestry.apiserver.storage.memory import MemoryLog
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.subresources import Subresources
from tapestry.apiserver.types import Types
from tapestry.apiserver.verbs import Verbs
from tapestry.kube.objects import Object
from tapestry.process.logs import logger
from tapestry.process.probes import parse_address

log = logger(__name__)

COMPACTIONS = 5
"""How often history is cut, in the time that it goes back."""
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1")
"""What the server may always be called."""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    server: Server
    store: Store
    accounts: Accounts
    addresses: dict[str, str]
    """Where: under `secure` and `local`."""
    folder: Path


@asynccontextmanager
async def running(
    config: ApiServerConfig, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> AsyncIterator[Running]:
    """Serve as configured, for as long as the context lasts; raises ValueError or OSError where that is impossible."""
    folder = Path(config.file_rootpath)
    store = Store(log_of(config, folder))
    store.load(labels_in)
    accounts = Accounts(store, key_in(folder / "pki" / "service-accounts.key"), config.service_account_issuer, now)
    ways = ways_of(config, accounts)
    server = server_of(config, store, accounts, ways, now)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.run(), name="log"), group.create_task(forget(store, config.history_seconds))]
        await bootstrap.install(server)
        runners = await listen(config, server, ways, folder)
        try:
            addresses = {name: address_of(runner) for name, runner in runners.items()}
            log.info("serving", objects=sum(map(store.count, store.resources())), **addresses)
            yield Running(server, store, accounts, addresses, folder)
        finally:
            for runner in runners.values():
                await runner.cleanup()
            for task in tasks:
                task.cancel()
    store.close()


def log_of(config: ApiServerConfig, folder: Path) -> Log:
    return FileLog(folder) if config.backend == "file" else MemoryLog()


def server_of(
    config: ApiServerConfig, store: Store, accounts: Accounts, ways: list[Way], now: Callable[[], datetime]
) -> Server:
    table = built_in()
    rows, types = Rows(table.rows), Types(table.types)
    authorize: Authorize = Authorizer(Roles(store)) if config.authorization == "RBAC" else everybody_may
    definitions, rules = Definitions(store, rows, types), DefinitionRules(rows, now)
    definitions.load()
    ownership = Ownership(Shapes(table.types), now, from_the_start=config.managed_fields == "Always")
    chance = random.SystemRandom()
    prepare = Pipeline(
        [
            *(TypedReading(types), definitions.read, admission.plain_secrets, defaults.step, rules.default),
            ownership.track,
            *(admission.Namespaces(store), admission.Priorities(store), admission.default_tolerations),
            *((admission.PodAccounts(store, chance),) if config.pod_accounts else ()),
        ]
    )
    settle = Pipeline([admission.immortal, admission.kinds, definitions.check, rules.settle, ownership.steady])
    verbs = Verbs(store, now, prepare, settle, ownership.apply, chance, config.unrestricted_update)
    special = {
        **Reviews(rows, authorize, accounts, Authenticator(ways).by_token).handlers(),
        **Subresources(verbs, rows, accounts).handlers(),
    }
    documents = Documents(rows, table.types)
    return Server(rows, verbs, version_of(table.version), authorize, special, documents=documents)


def version_of(version: str) -> Object:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    return {"major": major, "minor": minor, "gitVersion": f"{version}+tapestry", "platform": "linux/amd64"}


def ways_of(config: ApiServerConfig, accounts: Accounts) -> list[Way]:
    """How users are known."""
    tokens = [token_file(Path(config.token_auth_file))] if config.token_auth_file else []
    return [*tokens, by_certificate, accounts]


async def listen(config: ApiServerConfig, server: Server, ways: list[Way], folder: Path) -> dict[str, web.ServerRunner]:
    found = {}
    if (secure := parse_address(config.secure_address)) is not None:
        tls = tls_of(config, folder, secure.host)
        listener = Listener(server, Authenticator(ways), agent_refused=config.kubectl_disabled)
        found["secure"] = await serve(listener, secure.host, secure.port, tls)
    local = parse_address(config.local_address) if config.authn_allow_localhost else None
    if local is not None:
        if not local.is_loopback:
            raise ValueError(f"localAddress: {local} is not on loopback, and plain HTTP is for this machine alone")
        listener = Listener(server, Authenticator([*ways, by_place]), agent_refused=config.kubectl_disabled)
        found["local"] = await serve(listener, local.host, local.port)
    return found


def tls_of(config: ApiServerConfig, folder: Path, host: str) -> Any:
    authority = Authority(folder / "pki")
    authority.certificate()
    if config.tls.certificate:
        certificate, key = Path(config.tls.certificate), Path(config.tls.key)
    else:
        certificate, key = authority.server([*NAMES, *([host] if host and host not in NAMES else [])])
    own = [Path(config.tls.client_ca)] if config.tls.client_ca else []
    return server_context(certificate, key, [authority.certificate_file, *own])


def address_of(runner: web.ServerRunner) -> str:
    host, port, *_ = runner.addresses[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def labels_in(raw: bytes) -> Object:
    return Labelled.decode(raw).metadata.labels or {}


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


Labelled = msgspec.json.Decoder(_Object)


async def forget(store: Store, seconds: float) -> None:
    """Forget what happened longer ago than that."""
    marks: deque[tuple[float, int]] = deque()
    while True:
        await asyncio.sleep(seconds / COMPACTIONS)
        moment = time.monotonic()
        marks.append((moment, store.revision))
        while marks and marks[0][0] <= moment - seconds:
            store.forget_events(marks.popleft()[1])
