"""The service of virtual clusters in a process of planes: its gateway, its listeners and its first access key."""

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.apis.projects import ACCESS_KEYS, PROJECTS, AccessKeySpec, ProjectSpec
from tapestry.apiserver.access.authentication import Credentials, UnionAuthenticator
from tapestry.apiserver.access.certificates import CertificateAuthority, write_private_file
from tapestry.apiserver.access.tls_contexts import following_context
from tapestry.apiserver.core.private_files import KEYS_FOLDER
from tapestry.apiserver.core.requests import APISERVER_USER, MASTERS_GROUP, CallOrigin, User
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import AlreadyExists, Unauthorized
from tapestry.kube.objects import object_named
from tapestry.kube.resources import SECRETS
from tapestry.planes.app import PlaneProcess, client_of
from tapestry.planes.plane_keys import PlaneKeys
from tapestry.process.addresses import Address, parse_address
from tapestry.process.logs import logger
from tapestry.process.metrics import served_metrics
from tapestry.vclusters.access.authentication import Authenticator, Subject
from tapestry.vclusters.access.key_usage import KeyUsage
from tapestry.vclusters.access.keys import NewKey, new_key
from tapestry.vclusters.access.rate_limits import RateLimiter
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.administration import Administration
from tapestry.vclusters.audit.chained_log import open_log
from tapestry.vclusters.audit.heads import heads_stored
from tapestry.vclusters.config import ServiceConfig
from tapestry.vclusters.contract import Contract
from tapestry.vclusters.gateway import Gateway
from tapestry.vclusters.grpc import TlsFiles, serve_grpc
from tapestry.vclusters.listener_certificates import listener_certificates
from tapestry.vclusters.metrics import ServiceCollector
from tapestry.vclusters.model import VClusterMessages
from tapestry.vclusters.operation_service import OperationService
from tapestry.vclusters.page_tokens import PageTokens
from tapestry.vclusters.pages import Pager
from tapestry.vclusters.policy import project_specs
from tapestry.vclusters.rest import serve_rest
from tapestry.vclusters.service import DEFAULT_PROJECT, VClusterService
from tapestry.vclusters.snapshot_service import SnapshotService
from tapestry.vclusters.stored_objects import StoredObjects
from tapestry.vclusters.vcluster_kubeconfigs import VClusterKubeconfigs
from tapestry.vclusters.vcluster_proxy import VClusterProxy
from tapestry.vclusters.vcluster_reads import VClusterReads

log = logger(__name__)

PAGE_KEY_SECRET = "vcluster-page-tokens"
PAGE_KEY = "key"
ADMIN = "admin"
ANONYMOUS = Caller("anonymous", "none", is_platform_admin=True)
"""Caller without credentials on a listener without TLS, which only clients on this machine reach."""


@dataclass(frozen=True)
class Listeners:
    """Addresses of the service, as far as it has them."""

    rest: Address | None = None
    grpc: Address | None = None
    grpc_mtls: Address | None = None


@dataclass
class ProjectCache:
    """The decoded projects, which change rarely."""

    objects: StoredObjects
    _revision: int = field(default=-1, init=False)
    _projects: Sequence[tuple[str, ProjectSpec]] = field(default=(), init=False)

    def __call__(self) -> Sequence[tuple[str, ProjectSpec]]:
        revision = self.objects.store.changed_revision(PROJECTS.name)
        if revision != self._revision:
            self._projects, self._revision = project_specs(self.objects), revision
        return self._projects


@asynccontextmanager
async def serve_gateway(
    process: PlaneProcess, config: ServiceConfig, announce: Callable[[str], None]
) -> AsyncIterator[Listeners]:
    """Serve the contract. `announce` gets the addresses, and once in the life of an installation its first key."""
    management = client_of(process.management)
    await create_default_project(management)
    page_key = await shared_page_key(management)
    audit_folder = config.shared_path(process.config.folder) / "audit"
    async with AsyncExitStack() as stack:
        audit = await stack.enter_async_context(
            open_log(audit_folder / process.config.name, process.config.name, process.now)
        )
        await stack.enter_async_context(heads_stored(management, audit))
        contract = new_contract(process, PageTokens(page_key), audit_folder, is_compatible=config.compat_plaintext)
        objects = contract.vclusters.objects
        stack.enter_context(served_metrics(ServiceCollector(objects)))

        def access_key(id: str) -> AccessKeySpec | None:
            found = objects.get(ACCESS_KEYS, "", id)
            return msgspec.convert(found["spec"], AccessKeySpec) if found is not None else None

        anonymous = ANONYMOUS if config.compat_plaintext else None
        certificate_user = partial(user_of_certificate, process.management.http_handler.authenticate)
        controller = Client(
            InProcessTransport(process.management.request_handler, APISERVER_USER, CallOrigin.CONTROLLER)
        )
        usage = KeyUsage(controller, partial(objects.get, ACCESS_KEYS, ""), process.now)
        await run_in_background(stack, usage.run())
        authenticator = Authenticator(
            access_key, ProjectCache(objects), certificate_user, process.now, usage.record, anonymous
        )
        limiter = RateLimiter(time.monotonic, lambda: len(process.processes.live()))
        gateway = Gateway(contract, authenticator, audit, process.now, limiter)
        listeners = await listen(stack, gateway, VClusterProxy(contract.reads.kubeconfigs), process, config)
        if not objects.all(ACCESS_KEYS):
            key = new_key()
            if config.client_config:
                authority = CertificateAuthority(process.config.folder / KEYS_FOLDER).certificate_file
                write_client_config(Path(config.client_config), listeners, authority, key.text)
            await create_admin_key(management, key)
            if not config.client_config:
                announce(f"access key of the administrator, which is shown only once: {key.text}")
        for name in ("rest", "grpc", "grpc_mtls"):
            address = getattr(listeners, name)
            if address is not None:
                announce(f"virtual clusters are served by {name} at {address}")
        yield listeners


def user_of_certificate(authenticate: UnionAuthenticator, certificate: Subject) -> User | None:
    try:
        return authenticate(Credentials(certificate=certificate))
    except Unauthorized:
        return None


async def run_in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run a task until the stack is closed."""
    group = await stack.enter_async_context(asyncio.TaskGroup())
    stack.callback(group.create_task(work).cancel)


async def listen(
    stack: AsyncExitStack, gateway: Gateway, proxy: VClusterProxy, process: PlaneProcess, config: ServiceConfig
) -> Listeners:
    rest, grpc, mtls = map(parse_address, (config.rest_address, config.grpc_address, config.grpc_mtls_address))
    certificates = listener_certificates(process)
    await run_in_background(stack, certificates.renew())
    files = TlsFiles(certificates.certificate, certificates.key)
    is_plain = config.compat_plaintext
    rest_tls = None if is_plain else following_context(certificates.context)
    return Listeners(
        await stack.enter_async_context(serve_rest(gateway, rest, rest_tls, proxy)) if rest else None,
        await stack.enter_async_context(serve_grpc(gateway, grpc, None if is_plain else files)) if grpc else None,
        await stack.enter_async_context(serve_grpc(gateway, mtls, replace(files, client_ca=certificates.client_ca)))
        if mtls
        else None,
    )


def new_contract(process: PlaneProcess, tokens: PageTokens, audit_folder: Path, *, is_compatible: bool) -> Contract:
    objects, pager = StoredObjects(process.management.store), Pager(tokens)
    keys = PlaneKeys(process.plane_set, process.tls.plane_context, process.now)
    kubeconfigs = VClusterKubeconfigs(objects, process.plane_set, process.endpoints, keys, process.holders)
    messages = VClusterMessages(is_compatible)
    client = partial(management_client, process.management.request_handler)
    return Contract(
        VClusterService(client, objects, process.now, messages),
        VClusterReads(objects, pager, kubeconfigs, messages),
        SnapshotService(client, objects, pager, process.now),
        OperationService(client, objects, pager),
        Administration(client, objects, pager, audit_folder, process.now),
    )


def management_client(handler: RequestHandler, caller: Caller) -> Client:
    """Return a client of the management API for a caller whom the gateway has authorized."""
    return Client(InProcessTransport(handler, User(caller.user, (MASTERS_GROUP,)), CallOrigin.SERVICE))


async def create_default_project(client: Client) -> None:
    try:
        await client.create(PROJECTS, {**object_named(DEFAULT_PROJECT), "spec": {}})
    except AlreadyExists:
        return


async def shared_page_key(client: Client) -> bytes:
    """Return the key that signs page tokens, which all processes of a group share."""
    text = base64.b64encode(secrets.token_bytes(32)).decode()
    try:
        new = {**object_named(PAGE_KEY_SECRET, SYSTEM_NAMESPACE), "data": {PAGE_KEY: text}}
        secret = await client.create(SECRETS, new)
    except AlreadyExists:
        secret = await client.get(SECRETS, PAGE_KEY_SECRET, SYSTEM_NAMESPACE)
    return base64.b64decode(secret["data"][PAGE_KEY])


def write_client_config(file: Path, listeners: Listeners, authority: Path, key: str) -> None:
    """Write the configuration file of `tapestry vc`, which only its owner may read."""
    config = {"server": f"https://{listeners.rest}", "certificateAuthority": str(authority.absolute()), "key": key}
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private_file(file, msgspec.yaml.encode(config))


async def create_admin_key(client: Client, key: NewKey) -> None:
    """Create the first access key, of a platform admin."""
    spec = {"principal": ADMIN, "secretSha256": key.hash, "platformAdmin": True, "description": "the first key"}
    await client.create(ACCESS_KEYS, {**object_named(key.id), "spec": spec})
