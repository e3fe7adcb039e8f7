"""Assembly of an API server: store, authorization, admission and request handling, without listeners."""

import asyncio
import ipaddress
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tapestry.apiserver import bootstrap
from tapestry.apiserver.access.audit_policy import METADATA_POLICY, load_policy
from tapestry.apiserver.access.auditing import Auditor
from tapestry.apiserver.access.authentication import (
    Authenticator,
    StaticTokenAuthenticator,
    UnionAuthenticator,
    load_token_file,
)
from tapestry.apiserver.access.bootstrap_roles import BOOTSTRAP_CHECK, check_bootstrap_roles, parsed_bootstrap_objects
from tapestry.apiserver.access.certificate_authenticator import CertificateAuthenticator, load_trusted_cas
from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca
from tapestry.apiserver.access.ephemeral_tokens import TOKENS_FILE as TOKENS
from tapestry.apiserver.access.ephemeral_tokens import (
    EphemeralTokenAuthenticator,
    has_expired_tokens,
    load_tokens,
    remove_expired_tokens,
)
from tapestry.apiserver.access.escalation import BINDINGS, ROLES, EscalationCheck
from tapestry.apiserver.access.node_authorizer import NodeAuthorizer, node_rules
from tapestry.apiserver.access.node_graph import NodeGraph
from tapestry.apiserver.access.openid import OpenIdHandlers
from tapestry.apiserver.access.rbac import RbacAuthorizer, RoleIndex
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.reviews import ReviewHandlers
from tapestry.apiserver.access.revocations import REVOCATIONS_FILE, load_revocations
from tapestry.apiserver.access.rotation import SIGNING_KEY_FILE, finish_rotations, has_rotation
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.access.tls_contexts import client_ca_files
from tapestry.apiserver.access.token_keys import load_token_keys
from tapestry.apiserver.admission.default_class import default_ingress_class, default_storage_class
from tapestry.apiserver.admission.default_toleration_seconds import default_toleration_seconds
from tapestry.apiserver.admission.limit_ranger import LimitRanger
from tapestry.apiserver.admission.namespace_lifecycle import NamespaceLifecycle
from tapestry.apiserver.admission.node_restriction import RESTRICTED_RESOURCES, NodeRestriction
from tapestry.apiserver.admission.pod_security import PodSecurity
from tapestry.apiserver.admission.policy_strategy import MATCH_FIELDS, PolicyStrategy
from tapestry.apiserver.admission.priority import PriorityAdmission
from tapestry.apiserver.admission.quota import ResourceQuotaAdmission
from tapestry.apiserver.admission.runtime_class import RuntimeClassAdmission
from tapestry.apiserver.admission.service_account import ServiceAccountAdmission
from tapestry.apiserver.admission.storage_object_in_use_protection import PROTECTION_FINALIZERS, protect_storage_object
from tapestry.apiserver.admission.syncer_restriction import (
    RESTRICTED_FIELDS_OF,
    RESTRICTED_TARGETS,
    SyncerRestriction,
)
from tapestry.apiserver.admission.validating_policies import ValidatingPolicies
from tapestry.apiserver.admission.webhooks import AdmissionWebhooks
from tapestry.apiserver.aggregation.aggregator import build_aggregator
from tapestry.apiserver.aggregation.proxy import AggregationProxy
from tapestry.apiserver.ca_publisher import CaBundle, CaPublisher
from tapestry.apiserver.core.certificate_requests import SIGNING_REQUESTS
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.egress import egress_policy
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.host_access import HostAccess
from tapestry.apiserver.core.outgoing_http import WebhookClient
from tapestry.apiserver.core.private_files import KEYS_FOLDER, ChangeKeys, change_local_keys
from tapestry.apiserver.core.requests import Attributes, Authorize, BuildAdmission, allow_all, no_denial_reason
from tapestry.apiserver.core.resource_registry import ResourceRegistry, published_api
from tapestry.apiserver.core.responses import PathHandler, ResourceHandler, SpecialHandler
from tapestry.apiserver.core.session_limiter import SessionLimiter
from tapestry.apiserver.core.shared_capacity import SharedCapacity
from tapestry.apiserver.core.spec_cache import SpecCache
from tapestry.apiserver.core.storage_codec import StorageCodec
from tapestry.apiserver.core.storage_limits import StorageLimits
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.core.type_decoders import published_decoders
from tapestry.apiserver.core.workers import Worker
from tapestry.apiserver.customresources.conversions import Converter
from tapestry.apiserver.customresources.definitions import Definitions, DefinitionStrategy
from tapestry.apiserver.defaults import kinds as defaults
from tapestry.apiserver.defaults import server_fields
from tapestry.apiserver.documents.discovery import version_info
from tapestry.apiserver.documents.document_cache import DocumentCache, built_in_documents
from tapestry.apiserver.documents.document_handler import DocumentHandler
from tapestry.apiserver.fieldmanager.apply import FieldManager
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchemas, published_merge_schemas
from tapestry.apiserver.handlers.pipeline import (
    BuiltInDecoder,
    Pipeline,
    PureStep,
    ResourceStep,
    is_built_in,
    is_custom,
    is_one_of,
)
from tapestry.apiserver.handlers.reader import Reader
from tapestry.apiserver.handlers.server import Server
from tapestry.apiserver.handlers.verbs import Verbs
from tapestry.apiserver.service_allocator import Network, ServiceAllocator
from tapestry.apiserver.serving.active_requests import RequestKind
from tapestry.apiserver.serving.connection_limiter import MAX_UNAUTHENTICATED, ConnectionLimiter
from tapestry.apiserver.serving.health import HealthHandlers, StorageCheck, ping
from tapestry.apiserver.serving.http_handler import HttpHandler, RequestScheduler
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter, WatchLimiter
from tapestry.apiserver.serving.metrics import ProcessMetrics, ServerCollector, ServerMetrics
from tapestry.apiserver.serving.request_handler import MountedHandler, RequestHandler
from tapestry.apiserver.serving.uploads import UploadBudget
from tapestry.apiserver.storage.backends import open_store
from tapestry.apiserver.subresources.connections import CONNECT_TARGETS, build_connect_handler
from tapestry.apiserver.subresources.evictions import EvictionHandler
from tapestry.apiserver.subresources.kubelet_client import KubeletClient
from tapestry.apiserver.subresources.scales import ScaleHandler
from tapestry.apiserver.subresources.signing_requests import SigningRequests
from tapestry.apiserver.subresources.tokens_and_bindings import TokensAndBindings
from tapestry.apiserver.subresources.typed_bodies import TypedBodies
from tapestry.apiserver.validation import strategies as validation
from tapestry.apiserver.warnings import kinds as advice
from tapestry.kube.resources import CRDS, DISRUPTION_BUDGETS, NAMESPACES, RESOURCE_QUOTAS, SERVICES
from tapestry.process.audit import AuditLog, AuditWriter
from tapestry.process.system import raise_open_file_limit
from tapestry.process.tasks import free_frames

COMPACTIONS_PER_RETENTION = 5
"""Number of compactions within the history retention time."""
FINISH_SECONDS = 1.0
"""Seconds that requests, and then watches, may take to end when the server closes."""
LAST_WRITE_SECONDS = 5.0
"""Seconds that the last writes may take when the server closes."""
WORKER_THREADS, LOG_WRITERS = 2, 3
"""Threads for large requests, and threads for the logs of local stores, if a process has many servers."""
SHARED_AUDIT_RECORDS, SHARED_AUDIT_BYTES = 2_000, 1 << 20
"""Limits on the buffered audit records of a server that shares its process with other servers."""
RESERVED_FILES = 256
"""Open files that the server needs in addition to connections."""


@dataclass(frozen=True)
class ServerThreads:
    """Threads that the servers of a process share."""

    large_requests: Worker = field(default_factory=Worker)
    log_writers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="log"))
    """Threads that write to the logs of local stores."""

    @classmethod
    def for_many_servers(cls) -> "ServerThreads":
        """Return threads of which one server never uses all."""
        return cls(Worker(WORKER_THREADS), ThreadPoolExecutor(LOG_WRITERS, thread_name_prefix="log"))

    def close(self) -> None:
        self.large_requests.close()
        self.log_writers.shutdown()


@dataclass(frozen=True)
class ServerIsolation:
    """Parts of a server that shares its process with other servers, so that none affects another."""

    name: str
    """Name of the server in the process."""
    worker: Worker
    upload_budget: UploadBudget
    connections: SharedCapacity
    """Connections of all servers of the process."""
    scheduler: RequestScheduler
    metrics: ServerMetrics
    audit_writer: AuditWriter


@dataclass(frozen=True)
class ServerExtensions:
    """Additions to a server by the program that it is part of."""

    mounted_handlers: Mapping[str, MountedHandler] = field(default_factory=dict)
    """Handlers of other APIs, by the first segment of their paths."""
    admission: BuildAdmission | None = None


NO_EXTENSIONS = ServerExtensions()


class ServerLimiters(NamedTuple):
    """Limits on what clients of a server do at the same time."""

    inflight: InflightLimiter
    connections: ConnectionLimiter
    watches: WatchLimiter


@dataclass(frozen=True)
class OpenServer:
    """A server that handles requests of this process and of listeners."""

    config: ApiServerConfig
    server: Server
    request_handler: RequestHandler
    """The server with auditing, metrics and health checks."""
    http_handler: HttpHandler
    """The request handler with authentication and limits."""
    store: Store
    account_tokens: ServiceAccountTokens
    folder: Path
    ca_bundle: CaBundle
    """CAs by which clients verify the server."""

    async def finish(self) -> None:
        """End all requests before the server is closed: watches with a bookmark at the last revision.

        The caller passes no further requests to `http_handler`, and has stopped the controllers of this process.
        """
        requests = self.http_handler.active_requests
        await requests.wait_for_end(RequestKind.SHORT, FINISH_SECONDS)
        with suppress(TimeoutError):  # of a store that has failed; its watches end without a bookmark
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self.store.finish()
        await requests.terminate([RequestKind.SESSION], FINISH_SECONDS)
        await requests.wait_for_end(RequestKind.WATCH, FINISH_SECONDS)
        await requests.terminate(RequestKind, FINISH_SECONDS)
        self.http_handler.connection_limiter.close_authenticated()


@asynccontextmanager
async def open_server(
    config: ApiServerConfig,
    threads: ServerThreads,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    extensions: ServerExtensions = NO_EXTENSIONS,
    spec_cache: SpecCache | None = None,
    isolation: ServerIsolation | None = None,
    fence: EpochFence | None = None,
    change_keys: ChangeKeys = change_local_keys,
) -> AsyncIterator[OpenServer]:
    """Open the store and handle requests for the duration of the context. Raises ValueError or OSError.

    `change_keys` stores what the server changes in its keys by itself: the end of rotations, and expired tokens.

    With a fence, this is the only server that writes to its store in etcd. When another one takes a later epoch, the
    context ends with an error.
    """
    folder = Path(config.file_rootpath)
    if has_rotation(folder):
        await change_keys(partial(finish_rotations, folder, now()))
    if config.secure_address:
        CertificateAuthority(folder / KEYS_FOLDER).certificate_pem()  # created at the first start
    async with open_store(config, folder, threads.log_writers, fence) as store:
        account_tokens = build_account_tokens(config, store, folder, now)
        if has_expired_tokens(folder, now()):
            await change_keys(partial(remove_expired_tokens, folder, now()))
        authenticators, limiters = build_authenticators(config, now, account_tokens), build_limiters(config, isolation)
        server = build_server(config, store, account_tokens, authenticators, now, spec_cache, extensions.admission)
        request_handler = replace(
            build_request_handler(config, server, account_tokens, limiters, isolation),
            mounted_handlers=extensions.mounted_handlers,
            worker=isolation.worker if isolation is not None else threads.large_requests,
        )
        http_handler = HttpHandler(
            *(
                request_handler,
                UnionAuthenticator(authenticators, allow_anonymous=config.anonymous_auth),
                limiters.inflight,
                config.request_timeout,
            ),
            kubectl_disabled=config.kubectl_disabled,
            connection_limiter=limiters.connections,
            watch_limiter=limiters.watches,
        )
        if isolation is not None:
            http_handler = replace(
                http_handler,
                upload_budget=isolation.upload_budget,
                scheduler=isolation.scheduler,
            )
        publisher, tasks = CaPublisher(server, config, folder, now, change_keys), list[asyncio.Task[None]]()
        try:
            await store.load()
            async with asyncio.TaskGroup() as group:
                background_work = store.run(), compact_history(store, config.history_seconds)
                tasks += [group.create_task(work) for work in background_work]
                try:
                    await store.wait_for_latest()
                    await bootstrap.install(server)
                    await publisher.publish()
                    tasks.append(group.create_task(publisher.run(), name="ca-publisher"))
                    yield OpenServer(
                        *(config, server, request_handler, http_handler, store, account_tokens, folder),
                        publisher.bundle,
                    )
                finally:
                    await server.close()
                    for task in tasks:
                        task.cancel()
                    if request_handler.auditor is not None:
                        await asyncio.to_thread(request_handler.auditor.log_file.close)  # it syncs the file
        finally:
            publisher.bundle.close()
            free_frames(tasks)
            await store.clear()


def build_server(
    config: ApiServerConfig,
    store: Store,
    account_tokens: ServiceAccountTokens,
    authenticators: list[Authenticator],
    now: Callable[[], datetime],
    spec_cache: SpecCache | None = None,
    admission: BuildAdmission | None = None,
) -> Server:
    api = published_api()
    registry, types = ResourceRegistry(api.resources), published_decoders()
    authorize, denial_reason = build_authorizer(config, store)
    definitions, crd_strategy = Definitions(store, registry, types), DefinitionStrategy(registry, now)
    field_manager = FieldManager(
        MergeSchemas(api.schemas, published_merge_schemas()),
        now,
        tracks_from_creation=config.managed_fields == "Always",
    )
    rng, limit_ranger = random.Random(), LimitRanger(store)
    spec_cache = spec_cache or SpecCache()
    syncer_restriction = SyncerRestriction()
    skippable = syncer_restriction.unless_skipped
    allocator = ServiceAllocator(store, service_range(config), rng, syncer_restriction)
    policies, policy_strategy = ValidatingPolicies(store, registry, authorize), PolicyStrategy(registry, api.schemas)
    is_crd, is_policy, is_csr = is_one_of(CRDS.name), is_one_of(*MATCH_FIELDS), is_one_of(SIGNING_REQUESTS)
    has_limits = is_one_of("pods", "persistentvolumeclaims")
    grants_rights, is_restricted = is_one_of(*ROLES, *BINDINGS), is_one_of(*RESTRICTED_RESOURCES)
    decoding = (
        *(
            ResourceStep(is_built_in, PureStep(BuiltInDecoder(types, spec_cache))),
            ResourceStep(is_custom, PureStep(definitions.prune_and_default)),
        ),
        *(
            ResourceStep(is_one_of("secrets"), PureStep(server_fields.merge_string_data)),
            PureStep(defaults.apply_defaults),
        ),
        *(
            ResourceStep(is_crd, PureStep(crd_strategy.default)),
            ResourceStep(is_policy, PureStep(policy_strategy.default)),
        ),
    )
    pod_plugins = (
        *(skippable(limit_ranger.default), PriorityAdmission(store), default_toleration_seconds),
        *((ServiceAccountAdmission(store, rng),) if config.pod_accounts else ()),
        RuntimeClassAdmission(store),
    )
    plugins = (
        *(ResourceStep(is_one_of("pods"), step) for step in pod_plugins),
        ResourceStep(is_one_of("persistentvolumeclaims"), default_storage_class(store)),
        ResourceStep(is_one_of("ingresses.networking.k8s.io"), default_ingress_class(store)),
        ResourceStep(is_one_of(*PROTECTION_FINALIZERS), protect_storage_object),
    )
    egress = egress_policy(config)
    host_access = HostAccess(lambda: syncer_restriction.is_enabled)
    webhook_client = WebhookClient(store, rng, egress, host_access)
    converter = Converter(webhook_client, definitions)
    kubelets = KubeletClient(store, config.kubelet, egress.check_kubelet, host_access)
    webhooks = AdmissionWebhooks(
        store, registry, webhook_client, converter, authorize, Pipeline(decoding), Pipeline(plugins)
    )
    csrs, restriction = SigningRequests(authorize, now), NodeRestriction(store, authorize)
    lifecycle = NamespaceLifecycle(store)
    plugin = admission(store) if admission is not None else None
    admit = Pipeline(
        [
            ResourceStep(is_one_of(*RESTRICTED_TARGETS), syncer_restriction.check_target),
            *(*decoding, ResourceStep(is_restricted, restriction)),
            *(
                ResourceStep(is_csr, csrs.prepare),
                PureStep(field_manager.track_update),
                lifecycle,
            ),
            *plugins,
            skippable(webhooks.mutate),
        ]
    )
    validators = skippable(policies), skippable(webhooks.validate)
    validate = Pipeline(
        [
            *(
                (ResourceStep(grants_rights, EscalationCheck(authorize)),)
                if isinstance(authorize, RbacAuthorizer)
                else ()
            ),
            *(
                server_fields.prepare_for_write,
                ResourceStep(is_one_of(SERVICES.name), allocator),
                PureStep(validation.validation_step),
                ResourceStep(is_one_of(*RESTRICTED_FIELDS_OF), syncer_restriction.check_fields),
                *((ResourceStep(is_one_of(*plugin.resources), plugin.admit),) if plugin is not None else ()),
                ResourceStep(is_custom, PureStep(definitions.validate)),
            ),
            *(
                ResourceStep(is_crd, PureStep(crd_strategy.validate)),
                ResourceStep(is_policy, PureStep(policy_strategy.validate)),
                ResourceStep(is_csr, csrs.check),
            ),
            *(
                PureStep(advice.add_warnings),
                PureStep(field_manager.ignore_timestamp_changes),
                ResourceStep(has_limits, skippable(limit_ranger.check)),
            ),
            *(skippable(PodSecurity(store)), *validators),
            skippable(
                ResourceQuotaAdmission(store, registry.info_for(RESOURCE_QUOTAS), now)
            ),  # last, because the charged object is stored immediately after it
        ]
    )
    delete_steps = (
        *(syncer_restriction.check_delete, restriction.validate_delete, lifecycle.validate_delete),
        *((plugin.validate_delete,) if plugin is not None else ()),
        advice.add_delete_warnings,
        *map(syncer_restriction.delete_unless_skipped, (policies.validate_delete, webhooks.validate_delete)),
    )
    codec = StorageCodec(converter)
    reader = Reader(store, codec, rng)
    verbs = Verbs(
        *(store, codec, now, admit, validate, delete_steps, field_manager.apply, rng),
        unrestricted=config.unrestricted_update,
        admission_validate=Pipeline(validators),
        authorize=authorize,
        storage_limits=build_storage_limits(config, store),
    )
    post_handlers = {
        **TokensAndBindings(reader, verbs, registry, account_tokens).handlers(),
        ("pods", "eviction"): EvictionHandler(reader, verbs, registry.info_for(DISRUPTION_BUDGETS)).evict,
    }
    reviews, typed = (
        ReviewHandlers(registry, authorize, account_tokens, UnionAuthenticator(authenticators).user_for_token),
        TypedBodies(types).typed_handler,
    )
    limiter = SessionLimiter(config.max_sessions, config.max_sessions_per_user, is_strict=config.strict_limits)
    connections = build_connect_handler(store, policies, webhooks, kubelets, rng, limiter, egress.check_pod)

    def admitted(handler: ResourceHandler) -> ResourceHandler:
        by_plane = webhooks.admitted_handler(policies.admitted_handler(handler))
        return restriction.restricted_handler(syncer_restriction.handler_unless_skipped(by_plane, handler))

    special: dict[tuple[str, str], SpecialHandler] = {
        **{key: typed(handler) for key, handler in reviews.handlers().items()},
        **{key: typed(admitted(handler)) for key, handler in post_handlers.items()},
        **dict.fromkeys(CONNECT_TARGETS, connections.handle),
        ("pods", "log"): kubelets.pod_log,
        ("*", "scale"): typed(ScaleHandler(reader, verbs, webhooks.admit).handle),
    }
    certificate = partial(
        front_proxy_ca(Path(config.file_rootpath)).client_certificate, bootstrap.FRONT_PROXY_CLIENT, ()
    )
    proxy = AggregationProxy(store, rng, certificate, config.request_timeout, egress.check_api_server, host_access)
    aggregator = build_aggregator(store, registry, proxy, limiter, host_access)
    document_cache = DocumentCache(registry, built_in_documents())
    documents = DocumentHandler(registry, document_cache, version_info(api.version), aggregator)
    return Server(
        *(registry, reader, verbs, documents, aggregator, authorize, denial_reason, special),
        path_handlers=documents.path_handlers(),
        close_callbacks=(
            *(webhook_client.close, kubelets.close, connections.proxy.close, proxy.close),
            *(document_cache.close, spec_cache.clear),
        ),
        syncer_restriction=syncer_restriction,
        host_access=host_access,
    )


def build_authorizer(config: ApiServerConfig, store: Store) -> tuple[Authorize, Callable[[Attributes], str]]:
    """Return the authorizer (node rules and roles) and the function that explains denials."""
    if config.authorization != "RBAC":
        return allow_all, no_denial_reason
    node_authorizer = NodeAuthorizer(NodeGraph(store), node_rules())
    authorizer = RbacAuthorizer(RoleIndex(store, parsed_bootstrap_objects()), node_authorizer.denial_reason)
    return authorizer, authorizer.denial_reason


def service_range(config: ApiServerConfig) -> Network:
    try:
        return ipaddress.ip_network(config.service_cluster_ip_range)
    except ValueError as error:
        raise ValueError(f"serviceClusterIpRange: {error}") from error


def build_account_tokens(
    config: ApiServerConfig, store: Store, folder: Path, now: Callable[[], datetime]
) -> ServiceAccountTokens:
    signing, others = signing_key_file(config, folder), [Path(each) for each in config.service_account_key_files]
    keys = ReloadingFile(signing, lambda path: load_token_keys(path, others))
    return ServiceAccountTokens(store, keys, config.service_account_issuer, now, tuple(config.api_audiences))


def build_storage_limits(config: ApiServerConfig, store: Store) -> StorageLimits | None:
    is_limited = config.max_objects or config.max_bytes
    return StorageLimits(store, config.max_objects, config.max_bytes) if is_limited else None


def build_limiters(config: ApiServerConfig, isolation: ServerIsolation | None = None) -> ServerLimiters:
    connections = build_connection_limiter(config, isolation)
    return ServerLimiters(build_inflight_limiter(config), connections, WatchLimiter(config.max_watches))


def signing_key_file(config: ApiServerConfig, folder: Path) -> Path:
    configured = config.service_account_signing_key_file
    return Path(configured) if configured else folder / KEYS_FOLDER / SIGNING_KEY_FILE


def build_inflight_limiter(config: ApiServerConfig) -> InflightLimiter:
    limits = {READ_ONLY: config.max_requests_inflight, MUTATING: config.max_mutating_requests_inflight}
    return InflightLimiter(limits, is_strict=config.strict_limits)


def build_connection_limiter(config: ApiServerConfig, isolation: ServerIsolation | None = None) -> ConnectionLimiter:
    """Build the connection limits, reduced to what the open file limit allows."""
    total, unauthenticated = connection_limits(config.max_connections)
    if isolation is not None:
        limits = total, config.max_connections_per_user, unauthenticated
        return ConnectionLimiter(*limits, server=isolation.name, capacity=isolation.connections)
    return ConnectionLimiter(total, config.max_connections_per_user, unauthenticated, is_strict=config.strict_limits)


def connection_limits(max_connections: int) -> tuple[int, int]:
    """Return the numbers of authenticated and unauthenticated connections that the open file limit allows."""
    files = raise_open_file_limit(max_connections + MAX_UNAUTHENTICATED + RESERVED_FILES)
    unauthenticated = min(MAX_UNAUTHENTICATED, files // 4)
    return min(max_connections, files - unauthenticated - RESERVED_FILES), unauthenticated


def build_request_handler(
    config: ApiServerConfig,
    server: Server,
    account_tokens: ServiceAccountTokens,
    limiters: ServerLimiters,
    isolation: ServerIsolation | None = None,
) -> RequestHandler:
    """Build the request handler with auditing, metrics, health checks and OpenID documents."""
    store, now = server.verbs.store, server.verbs.now
    metrics = isolation.metrics if isolation is not None else ProcessMetrics()
    collector = ServerCollector(
        *(store, lambda: limiters.inflight.inflight, lambda: limiters.connections.counts),
        watches=lambda: limiters.watches.open,
        rejected_writes=lambda: server.verbs.storage_limits.rejected if server.verbs.storage_limits is not None else 0,
    )
    storage = StorageCheck(store, server.registry.info_for(NAMESPACES))
    health = HealthHandlers({"ping": ping, "storage": storage, BOOTSTRAP_CHECK: partial(check_bootstrap_roles, store)})
    path_handlers: dict[str, PathHandler] = {
        **server.path_handlers,
        "metrics": metrics.path_handler(collector),
        **health.path_handlers(),
        **OpenIdHandlers(account_tokens).path_handlers(),
    }
    auditor = None
    if config.audit_log_path:
        policy = load_policy(Path(config.audit_policy_file)) if config.audit_policy_file else METADATA_POLICY
        auditor = Auditor(policy, open_audit_log(config, isolation), server.authorize, now)
    return RequestHandler(
        replace(server, path_handlers=path_handlers), config.request_timeout, auditor, metrics=metrics
    )


def open_audit_log(config: ApiServerConfig, isolation: ServerIsolation | None) -> AuditLog:
    rotation = partial(AuditLog, max_bytes=config.audit_log_maxsize << 20, backups=config.audit_log_maxbackup)
    if isolation is None:
        return rotation(config.audit_log_path)
    limits = {"capacity": SHARED_AUDIT_RECORDS, "max_buffered_bytes": SHARED_AUDIT_BYTES}
    return rotation(config.audit_log_path, **limits, writer=isolation.audit_writer)


def build_authenticators(
    config: ApiServerConfig, now: Callable[[], datetime], account_tokens: Authenticator
) -> list[Authenticator]:
    """Build the authenticators; `account_tokens` authenticates tokens of service accounts."""
    folder = Path(config.file_rootpath)
    authenticators: list[Authenticator] = []
    if config.token_auth_file:
        users = ReloadingFile(Path(config.token_auth_file), load_token_file)
        authenticators.append(StaticTokenAuthenticator(users, rejects_kubectl=config.kubectl_ephemeral_token))
    authenticators.append(EphemeralTokenAuthenticator(ReloadingFile(folder / TOKENS, load_tokens), now))
    ca_files = client_ca_files(CertificateAuthority(folder / KEYS_FOLDER), config.tls)
    certificates = CertificateAuthenticator(
        [ReloadingFile(path, load_trusted_cas) for path in ca_files],
        ReloadingFile(folder / KEYS_FOLDER / REVOCATIONS_FILE, load_revocations),
        now,
    )
    return [*authenticators, certificates, account_tokens]


async def compact_history(store: Store, seconds: float) -> None:
    """Periodically drop watch history that is older than `seconds`."""
    marks: deque[tuple[float, int]] = deque()
    while True:
        await asyncio.sleep(seconds / COMPACTIONS_PER_RETENTION)
        now = time.monotonic()
        marks.append((now, store.revision))
        while marks and marks[0][0] <= now - seconds:
            store.compact_events(marks.popleft()[1])
