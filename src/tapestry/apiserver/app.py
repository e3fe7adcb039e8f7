"""Assembly of an API server process: storage, authorization, listeners and shutdown."""

import asyncio
import ipaddress
import platform
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tapestry.apiserver import bootstrap, kubernetes_service
from tapestry.apiserver.access.audit_policy import METADATA_POLICY, load_policy
from tapestry.apiserver.access.auditing import Auditor
from tapestry.apiserver.access.authentication import (
    Authenticator,
    StaticTokenAuthenticator,
    UnionAuthenticator,
    authenticate_certificate,
    authenticate_localhost,
    load_token_file,
)
from tapestry.apiserver.access.bootstrap_roles import BOOTSTRAP_CHECK, check_bootstrap_roles
from tapestry.apiserver.access.certificates import CertificateAuthority, front_proxy_ca, server_ssl_context
from tapestry.apiserver.access.client_certificates import request_client_certificates
from tapestry.apiserver.access.ephemeral_tokens import TOKENS_FILE as TOKENS
from tapestry.apiserver.access.ephemeral_tokens import EphemeralTokenAuthenticator, load_tokens, remove_expired_tokens
from tapestry.apiserver.access.escalation import BINDINGS, ROLES, EscalationCheck
from tapestry.apiserver.access.node_authorizer import NodeAuthorizer, node_rules
from tapestry.apiserver.access.node_graph import NodeGraph
from tapestry.apiserver.access.openid import OpenIdHandlers
from tapestry.apiserver.access.rbac import RbacAuthorizer, RoleIndex
from tapestry.apiserver.access.reloading_file import ReloadingFile
from tapestry.apiserver.access.reviews import ReviewHandlers
from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
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
from tapestry.apiserver.admission.validating_policies import ValidatingPolicies
from tapestry.apiserver.admission.webhooks import AdmissionWebhooks
from tapestry.apiserver.aggregation.aggregator import build_aggregator
from tapestry.apiserver.aggregation.proxy import AggregationProxy
from tapestry.apiserver.core.certificate_requests import SIGNING_REQUESTS
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.outgoing_http import WebhookClient
from tapestry.apiserver.core.requests import Attributes, Authorize, allow_all, no_denial_reason
from tapestry.apiserver.core.resource_registry import ResourceRegistry, published_api
from tapestry.apiserver.core.responses import PathHandler, SpecialHandler
from tapestry.apiserver.core.session_limiter import SessionLimiter
from tapestry.apiserver.core.spec_cache import SpecCache
from tapestry.apiserver.core.storage_codec import StorageCodec
from tapestry.apiserver.core.store import Store
from tapestry.apiserver.core.type_decoders import TypeDecoders
from tapestry.apiserver.core.workers import Worker
from tapestry.apiserver.customresources.conversions import Converter
from tapestry.apiserver.customresources.definitions import Definitions, DefinitionStrategy
from tapestry.apiserver.defaults import kinds as defaults
from tapestry.apiserver.defaults import server_fields
from tapestry.apiserver.documents.document_cache import DocumentCache
from tapestry.apiserver.documents.document_handler import DocumentHandler
from tapestry.apiserver.fieldmanager.apply import FieldManager
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchemas
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
from tapestry.apiserver.serving.connection_limiter import MAX_UNAUTHENTICATED, ConnectionLimiter
from tapestry.apiserver.serving.health import HealthHandlers, StorageCheck, ping
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter
from tapestry.apiserver.serving.metrics import MetricsHandler, ServerCollector
from tapestry.apiserver.serving.request_handler import MountedHandler, RequestHandler
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
from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.resources import CRDS, DISRUPTION_BUDGETS, NAMESPACES, RESOURCE_QUOTAS, SERVICES
from tapestry.process.addresses import parse_address
from tapestry.process.audit import AuditLog
from tapestry.process.logs import logger
from tapestry.process.system import raise_open_file_limit

log = logger(__name__)

COMPACTIONS_PER_RETENTION = 5
"""Number of compactions within the history retention time."""
RESERVED_FILES = 256
"""Open files that the server needs in addition to connections."""
DEFAULT_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1")
"""Names that are always in the serving certificate."""


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready for requests."""

    server: Server
    request_handler: RequestHandler
    """The server with auditing, metrics and health checks."""
    store: Store
    account_tokens: ServiceAccountTokens
    addresses: dict[str, str]
    """Listening addresses, under `secure` and `local`."""
    folder: Path


@asynccontextmanager
async def run_apiserver(
    config: ApiServerConfig,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    mounted_handlers: Mapping[str, MountedHandler] = EMPTY_MAPPING,
    spec_cache: SpecCache | None = None,
) -> AsyncIterator[RunningServer]:
    """Run the server for the duration of the context. Raises ValueError or OSError if it cannot start."""
    folder = Path(config.file_rootpath)
    async with open_store(config, folder) as store:
        account_tokens = build_account_tokens(config, store, folder, now)
        remove_expired_tokens(folder, now())
        authenticators, inflight_limiter, connection_limiter = (
            build_authenticators(config, account_tokens),
            build_inflight_limiter(config),
            build_connection_limiter(config),
        )
        server = build_server(config, store, account_tokens, authenticators, now, spec_cache)
        worker = Worker()
        request_handler = replace(
            build_request_handler(config, server, account_tokens, inflight_limiter, connection_limiter),
            mounted_handlers=mounted_handlers,
            worker=worker,
        )
        async with asyncio.TaskGroup() as group:
            background_work = store.run(), compact_history(store, config.history_seconds)
            tasks = [group.create_task(work) for work in background_work]
            await store.wait_for_latest()
            await bootstrap.install(server)
            http_handler = HttpHandler(
                *(
                    request_handler,
                    UnionAuthenticator(authenticators, allow_anonymous=config.anonymous_auth),
                    inflight_limiter,
                    config.request_timeout,
                ),
                kubectl_disabled=config.kubectl_disabled,
                connection_limiter=connection_limiter,
            )
            http_servers = await start_listeners(config, http_handler, folder, group)
            try:
                addresses = {name: bound_address(http_server) for name, http_server in http_servers.items()}
                if "secure" in http_servers:
                    await kubernetes_service.publish_service(
                        server, service_range(config), *http_servers["secure"].addresses[0][:2]
                    )
                    client_cas = "".join(each.read_text() for each in client_ca_files(config, folder))
                    await bootstrap.publish_client_cas(server, client_cas, front_proxy_ca(folder).certificate_pem())
                log.info("API server started", objects=sum(map(store.count, store.resources())), **addresses)
                yield RunningServer(server, request_handler, store, account_tokens, addresses, folder)
            finally:
                for http_server in http_servers.values():
                    await http_server.stop()
                await server.close()
                worker.close()
                for task in tasks:
                    task.cancel()
                if request_handler.auditor is not None:
                    request_handler.auditor.log_file.close()


def build_server(
    config: ApiServerConfig,
    store: Store,
    account_tokens: ServiceAccountTokens,
    authenticators: list[Authenticator],
    now: Callable[[], datetime],
    spec_cache: SpecCache | None = None,
) -> Server:
    api = published_api()
    registry, types = ResourceRegistry(api.resources), TypeDecoders(api.schemas)
    authorize, denial_reason = build_authorizer(config, store)
    definitions, crd_strategy = Definitions(store, registry, types), DefinitionStrategy(registry, now)
    definitions.load()
    field_manager = FieldManager(MergeSchemas(api.schemas), now, tracks_from_creation=config.managed_fields == "Always")
    rng, limit_ranger = random.Random(), LimitRanger(store)
    allocator = ServiceAllocator(store, service_range(config), rng)
    allocator.load()
    policies, policy_strategy = ValidatingPolicies(store, registry, authorize), PolicyStrategy(registry, api.schemas)
    is_crd, is_policy, is_csr = is_one_of(CRDS.name), is_one_of(*MATCH_FIELDS), is_one_of(SIGNING_REQUESTS)
    has_limits = is_one_of("pods", "persistentvolumeclaims")
    grants_rights, is_restricted = is_one_of(*ROLES, *BINDINGS), is_one_of(*RESTRICTED_RESOURCES)
    decoding = (
        *(
            ResourceStep(is_built_in, PureStep(BuiltInDecoder(types, spec_cache or SpecCache()))),
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
        *(limit_ranger.default, PriorityAdmission(store), default_toleration_seconds),
        *((ServiceAccountAdmission(store, rng),) if config.pod_accounts else ()),
        RuntimeClassAdmission(store),
    )
    plugins = (
        *(ResourceStep(is_one_of("pods"), step) for step in pod_plugins),
        ResourceStep(is_one_of("persistentvolumeclaims"), default_storage_class(store)),
        ResourceStep(is_one_of("ingresses.networking.k8s.io"), default_ingress_class(store)),
        ResourceStep(is_one_of(*PROTECTION_FINALIZERS), protect_storage_object),
    )
    webhook_client = WebhookClient(store, rng)
    converter, kubelets = Converter(webhook_client, definitions), KubeletClient(store, config.kubelet)
    webhooks = AdmissionWebhooks(
        store, registry, webhook_client, converter, authorize, Pipeline(decoding), Pipeline(plugins)
    )
    csrs, restriction = SigningRequests(authorize, now), NodeRestriction(store, authorize)
    lifecycle = NamespaceLifecycle(store)
    admit = Pipeline(
        [
            *(*decoding, ResourceStep(is_restricted, restriction)),
            *(
                ResourceStep(is_csr, csrs.prepare),
                PureStep(field_manager.track_update),
                lifecycle,
            ),
            *plugins,
            webhooks.mutate,
        ]
    )
    validators = policies, webhooks.validate
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
                ResourceStep(has_limits, limit_ranger.check),
            ),
            *(PodSecurity(store), *validators),
            ResourceQuotaAdmission(
                store, registry.info_for(RESOURCE_QUOTAS), now
            ),  # last, because the charged object is stored immediately after it
        ]
    )
    delete_steps = (
        *(restriction.validate_delete, lifecycle.validate_delete, advice.add_delete_warnings),
        *(policies.validate_delete, webhooks.validate_delete),
    )
    codec = StorageCodec(converter)
    reader = Reader(store, codec, rng)
    verbs = Verbs(
        *(store, codec, now, admit, validate, delete_steps, field_manager.apply, rng),
        unrestricted=config.unrestricted_update,
        admission_validate=Pipeline(validators),
        authorize=authorize,
    )
    post_handlers = {
        **TokensAndBindings(reader, verbs, registry, account_tokens).handlers(),
        ("pods", "eviction"): EvictionHandler(reader, verbs, registry.info_for(DISRUPTION_BUDGETS)).evict,
    }
    reviews, typed = (
        ReviewHandlers(registry, authorize, account_tokens, UnionAuthenticator(authenticators).user_for_token),
        TypedBodies(types).typed_handler,
    )
    limiter = SessionLimiter(config.max_sessions, config.max_sessions_per_user)
    connections = build_connect_handler(config, store, policies, webhooks, kubelets, rng, limiter)
    special: dict[tuple[str, str], SpecialHandler] = {
        **{key: typed(handler) for key, handler in reviews.handlers().items()},
        **{
            key: typed(restriction.restricted_handler(webhooks.admitted_handler(policies.admitted_handler(handler))))
            for key, handler in post_handlers.items()
        },
        **dict.fromkeys(CONNECT_TARGETS, connections.handle),
        ("pods", "log"): kubelets.pod_log,
        ("*", "scale"): typed(ScaleHandler(reader, verbs, webhooks.admit).handle),
    }
    certificate = partial(
        front_proxy_ca(Path(config.file_rootpath)).client_certificate, bootstrap.FRONT_PROXY_CLIENT, ()
    )
    allows_host = config.aggregation_allow_host
    proxy = AggregationProxy(store, rng, certificate, config.request_timeout, allows_host=allows_host)
    aggregator = build_aggregator(store, registry, proxy, limiter)
    documents = DocumentHandler(registry, DocumentCache(registry), version_info(api.version), aggregator)
    return Server(
        *(registry, reader, verbs, documents, aggregator, authorize, denial_reason, special),
        path_handlers=documents.path_handlers(),
        close_callbacks=(webhook_client.close, kubelets.close, connections.proxy.close, proxy.close),
    )


def build_authorizer(config: ApiServerConfig, store: Store) -> tuple[Authorize, Callable[[Attributes], str]]:
    """Return the authorizer (node rules and roles) and the function that explains denials."""
    if config.authorization != "RBAC":
        return allow_all, no_denial_reason
    node_authorizer = NodeAuthorizer(NodeGraph(store), node_rules())
    authorizer = RbacAuthorizer(RoleIndex(store), node_authorizer.denial_reason)
    return authorizer, authorizer.denial_reason


def service_range(config: ApiServerConfig) -> Network:
    try:
        return ipaddress.ip_network(config.service_cluster_ip_range)
    except ValueError as error:
        raise ValueError(f"serviceClusterIpRange: {error}") from error


RELEASES = {"v1.34.3": ("df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "2025-12-09T14:59:13Z")}
"""Commit and build date of each Kubernetes release whose API data we ship."""


def version_info(version: str) -> Object:
    """Return the body of /version: the Kubernetes release of the API, and the Python version.

    `kubectl --match-server-version` compares version, commit and tree state with its own.
    """
    major, minor, _ = version.removeprefix("v").split(".", 2)
    commit, built = RELEASES[version]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": version,
        "gitCommit": commit,
        "gitTreeState": "clean",
        "buildDate": built,
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": "linux/amd64",
    }


def build_account_tokens(
    config: ApiServerConfig, store: Store, folder: Path, now: Callable[[], datetime]
) -> ServiceAccountTokens:
    configured = config.service_account_signing_key_file
    signing = Path(configured) if configured else folder / "pki" / "service-accounts.key"
    keys = load_token_keys(signing, map(Path, config.service_account_key_files))
    return ServiceAccountTokens(store, keys, config.service_account_issuer, now, tuple(config.api_audiences))


def build_inflight_limiter(config: ApiServerConfig) -> InflightLimiter:
    return InflightLimiter({READ_ONLY: config.max_requests_inflight, MUTATING: config.max_mutating_requests_inflight})


def build_connection_limiter(config: ApiServerConfig) -> ConnectionLimiter:
    """Build the connection limits, reduced to what the open file limit allows."""
    files = raise_open_file_limit(config.max_connections + MAX_UNAUTHENTICATED + RESERVED_FILES)
    unauthenticated = min(MAX_UNAUTHENTICATED, files // 4)
    total = min(config.max_connections, files - unauthenticated - RESERVED_FILES)
    return ConnectionLimiter(total, config.max_connections_per_user, unauthenticated)


def build_request_handler(
    config: ApiServerConfig,
    server: Server,
    account_tokens: ServiceAccountTokens,
    inflight_limiter: InflightLimiter,
    connection_limiter: ConnectionLimiter,
) -> RequestHandler:
    """Build the request handler with auditing, metrics, health checks and OpenID documents."""
    store, now = server.verbs.store, server.verbs.now
    storage = StorageCheck(store, server.registry.info_for(NAMESPACES))
    health = HealthHandlers({"ping": ping, "storage": storage, BOOTSTRAP_CHECK: partial(check_bootstrap_roles, store)})
    path_handlers: dict[str, PathHandler] = {
        **server.path_handlers,
        "metrics": MetricsHandler(
            ServerCollector(store, lambda: inflight_limiter.inflight, lambda: connection_limiter.counts)
        ),
        **health.path_handlers(),
        **OpenIdHandlers(account_tokens).path_handlers(),
    }
    auditor = None
    if config.audit_log_path:
        policy = load_policy(Path(config.audit_policy_file)) if config.audit_policy_file else METADATA_POLICY
        max_bytes, backups = config.audit_log_maxsize << 20, config.audit_log_maxbackup
        auditor = Auditor(
            policy, AuditLog(config.audit_log_path, max_bytes=max_bytes, backups=backups), server.authorize, now
        )
    return RequestHandler(replace(server, path_handlers=path_handlers), config.request_timeout, auditor)


def build_authenticators(config: ApiServerConfig, account_tokens: ServiceAccountTokens) -> list[Authenticator]:
    authenticators: list[Authenticator] = []
    if config.token_auth_file:
        users = ReloadingFile(Path(config.token_auth_file), load_token_file)
        authenticators.append(StaticTokenAuthenticator(users, rejects_kubectl=config.kubectl_ephemeral_token))
    tokens = ReloadingFile(Path(config.file_rootpath) / TOKENS, load_tokens)
    authenticators.append(EphemeralTokenAuthenticator(tokens, account_tokens.now))
    return [*authenticators, authenticate_certificate, account_tokens]


async def start_listeners(
    config: ApiServerConfig, http_handler: HttpHandler, folder: Path, group: asyncio.TaskGroup
) -> dict[str, HttpServer]:
    servers = {}
    if (secure := parse_address(config.secure_address)) is not None:
        tls = server_tls_context(config, folder, secure.host)
        servers["secure"] = await start_http_server(http_handler, secure.host, secure.port, tls, group=group)
    local = parse_address(config.local_address) if config.authn_allow_localhost else None
    if local is not None:
        if not local.is_loopback:
            raise ValueError(f"localAddress: {local} is not a loopback address; plain HTTP is only served on loopback")
        authenticator = replace(
            http_handler.authenticate,
            authenticators=[*http_handler.authenticate.authenticators, authenticate_localhost],
        )
        servers["local"] = await start_http_server(
            replace(http_handler, authenticate=authenticator), local.host, local.port, group=group
        )
    return servers


def server_tls_context(config: ApiServerConfig, folder: Path, host: str) -> Any:
    authority = CertificateAuthority(folder / "pki")
    authority.certificate_pem()
    if config.tls.certificate:
        certificate, key = Path(config.tls.certificate), Path(config.tls.key)
    else:
        certificate, key = authority.server_certificate(
            [*DEFAULT_SERVER_NAMES, *([host] if host and host not in DEFAULT_SERVER_NAMES else [])]
        )
    clients = client_ca_files(config, folder)
    context = server_ssl_context(certificate, key, clients)
    request_client_certificates(context, clients)
    return context


def client_ca_files(config: ApiServerConfig, folder: Path) -> list[Path]:
    """Return the files with the CAs whose client certificates are accepted."""
    own = [Path(config.tls.client_ca)] if config.tls.client_ca else []
    return [CertificateAuthority(folder / "pki").certificate_file, *own]


def bound_address(http_server: HttpServer) -> str:
    host, port, *_ = http_server.addresses[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def compact_history(store: Store, seconds: float) -> None:
    """Periodically drop watch history that is older than `seconds`."""
    marks: deque[tuple[float, int]] = deque()
    while True:
        await asyncio.sleep(seconds / COMPACTIONS_PER_RETENTION)
        now = time.monotonic()
        marks.append((now, store.revision))
        while marks and marks[0][0] <= now - seconds:
            store.compact_events(marks.popleft()[1])
