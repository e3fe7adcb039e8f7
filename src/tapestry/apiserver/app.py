"""An API server as a process: its store, its rights, its listeners, and an orderly end."""

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
from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
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
from tapestry.apiserver.admission import core_plugins as admission
from tapestry.apiserver.admission.class_defaults import RESOURCES_WITH_CLASS, ClassDefaults
from tapestry.apiserver.admission.limit_ranger import LimitRanger
from tapestry.apiserver.admission.node_restriction import RESTRICTED_RESOURCES, NodeRestriction
from tapestry.apiserver.admission.pod_security import PodSecurity
from tapestry.apiserver.admission.policy_strategy import MATCH_FIELDS, PolicyStrategy
from tapestry.apiserver.admission.quota import ResourceQuotaAdmission
from tapestry.apiserver.admission.validating_policies import ValidatingPolicies
from tapestry.apiserver.admission.webhook_client import WebhookClient
from tapestry.apiserver.admission.webhooks import AdmissionWebhooks
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.customresources.conversions import Converter
from tapestry.apiserver.customresources.definitions import Definitions, DefinitionStrategy
from tapestry.apiserver.defaults import kinds as defaults
from tapestry.apiserver.documents.document_cache import DocumentCache
from tapestry.apiserver.fieldmanager.apply import FieldManager
from tapestry.apiserver.fieldmanager.merge_schemas import MergeSchemas
from tapestry.apiserver.pipeline import (
    BuiltInDecoder,
    Pipeline,
    PureStep,
    ResourceStep,
    is_built_in,
    is_custom,
    is_one_of,
)
from tapestry.apiserver.resource_registry import ResourceRegistry, published_api
from tapestry.apiserver.server import Attributes, Authorize, PathHandler, Server, allow_all, no_denial_reason
from tapestry.apiserver.service_allocator import Network, ServiceAllocator
from tapestry.apiserver.serving.connection_limiter import MAX_UNAUTHENTICATED, ConnectionLimiter
from tapestry.apiserver.serving.health import HealthHandlers, StorageCheck, ping
from tapestry.apiserver.serving.http_handler import HttpHandler, start_http_server
from tapestry.apiserver.serving.http_server import HttpServer
from tapestry.apiserver.serving.inflight_limiter import MUTATING, READ_ONLY, InflightLimiter
from tapestry.apiserver.serving.metrics import MetricsHandler, ServerCollector
from tapestry.apiserver.serving.request_handler import MountedHandler, RequestHandler
from tapestry.apiserver.storage.backends import open_store
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.subresources.connections import CONNECT_SUBRESOURCES, ConnectHandler
from tapestry.apiserver.subresources.evictions import EvictionHandler
from tapestry.apiserver.subresources.kubelet_client import KubeletClient
from tapestry.apiserver.subresources.partial_updates import SIGNING_REQUESTS
from tapestry.apiserver.subresources.scales import ScaleHandler
from tapestry.apiserver.subresources.signing_requests import SigningRequests
from tapestry.apiserver.subresources.tokens_and_bindings import TokensAndBindings
from tapestry.apiserver.subresources.typed_bodies import TypedBodies
from tapestry.apiserver.type_decoders import TypeDecoders
from tapestry.apiserver.validation import strategies as validation
from tapestry.apiserver.verbs import Verbs
from tapestry.apiserver.warnings import kinds as advice
from tapestry.apiserver.workers import Worker
from tapestry.kube.objects import EMPTY_MAPPING, Object
from tapestry.kube.resources import CRDS, DISRUPTION_BUDGETS, NAMESPACES, RESOURCE_QUOTAS, SERVICES
from tapestry.process.addresses import parse_address
from tapestry.process.audit import AuditLog
from tapestry.process.file_limits import raise_open_file_limit
from tapestry.process.logs import logger

log = logger(__name__)

COMPACTIONS_PER_RETENTION = 5
"""How often history is cut, in the time that it goes back."""
RESERVED_FILES = 256
"""Files that a server may have open beside connections."""
DEFAULT_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1")
"""What the server may always be called."""


@dataclass(frozen=True)
class RunningServer:
    """A server that answers."""

    server: Server
    request_handler: RequestHandler
    """The server as its clients find it."""
    store: Store
    account_tokens: ServiceAccountTokens
    addresses: dict[str, str]
    """Where: under `secure` and `local`."""
    folder: Path


@asynccontextmanager
async def run_apiserver(
    config: ApiServerConfig,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    mounted_handlers: Mapping[str, MountedHandler] = EMPTY_MAPPING,
) -> AsyncIterator[RunningServer]:
    """Serve as configured, for as long as the context lasts; raises ValueError or OSError where that is impossible."""
    folder = Path(config.file_rootpath)
    async with open_store(config, folder) as store:
        accounts = build_account_tokens(config, store, folder, now)
        remove_expired_tokens(folder, now())
        ways, gate, clients = (
            build_authenticators(config, accounts),
            build_inflight_limiter(config),
            build_connection_limiter(config),
        )
        server = build_server(config, store, accounts, ways, now)
        worker = Worker()
        reception = replace(
            build_request_handler(config, server, accounts, gate, clients),
            mounted_handlers=mounted_handlers,
            worker=worker,
        )
        async with asyncio.TaskGroup() as group:
            chores = store.run(), compact_history(store, config.history_seconds)
            tasks = [group.create_task(chore) for chore in chores]
            await store.wait_for_latest()
            await bootstrap.install(server)
            listener = HttpHandler(
                *(
                    reception,
                    UnionAuthenticator(ways, allow_anonymous=config.anonymous_auth),
                    gate,
                    config.request_timeout,
                ),
                kubectl_disabled=config.kubectl_disabled,
                connection_limiter=clients,
            )
            runners = await start_listeners(config, listener, folder, group)
            try:
                addresses = {name: bound_address(runner) for name, runner in runners.items()}
                if "secure" in runners:
                    await kubernetes_service.publish_service(
                        server, service_range(config), *runners["secure"].addresses[0][:2]
                    )
                    authorities = "".join(each.read_text() for each in client_ca_files(config, folder))
                    front_proxies = CertificateAuthority(folder / "pki", "front-proxy-ca")
                    await bootstrap.publish_client_cas(server, authorities, front_proxies.certificate_pem())
                log.info("serving", objects=sum(map(store.count, store.resources())), **addresses)
                yield RunningServer(server, reception, store, accounts, addresses, folder)
            finally:
                for runner in runners.values():
                    await runner.stop()
                await server.close()
                worker.close()
                for task in tasks:
                    task.cancel()
                if reception.auditor is not None:
                    reception.auditor.log_file.close()


def build_server(
    config: ApiServerConfig,
    store: Store,
    account_tokens: ServiceAccountTokens,
    authenticators: list[Authenticator],
    now: Callable[[], datetime],
) -> Server:
    table = published_api()
    rows, types = ResourceRegistry(table.resources), TypeDecoders(table.schemas)
    authorize, objection = build_authorizer(config, store)
    definitions, rules = Definitions(store, rows, types), DefinitionStrategy(rows, now)
    definitions.load()
    ownership = FieldManager(MergeSchemas(table.schemas), now, tracks_from_creation=config.managed_fields == "Always")
    chance, limits = random.Random(), LimitRanger(store)
    addresses = ServiceAllocator(store, service_range(config), chance)
    addresses.load()
    policies, policy_rules = ValidatingPolicies(store, rows, authorize), PolicyStrategy(rows, table.schemas)
    crds, hooks, requested = is_one_of(CRDS.name), is_one_of(*MATCH_FIELDS), is_one_of(SIGNING_REQUESTS)
    pods, bearers, giving = is_one_of("pods"), is_one_of("pods", "persistentvolumeclaims"), is_one_of(*ROLES, *BINDINGS)
    reading = (
        *(
            ResourceStep(is_built_in, PureStep(BuiltInDecoder(types))),
            ResourceStep(is_custom, PureStep(definitions.prune_and_default)),
        ),
        *(ResourceStep(is_one_of("secrets"), PureStep(admission.merge_string_data)), PureStep(defaults.apply_defaults)),
        *(ResourceStep(crds, PureStep(rules.default)), ResourceStep(hooks, PureStep(policy_rules.default))),
    )
    on_pods = (
        *(limits.default, admission.PriorityAdmission(store), admission.default_toleration_seconds),
        *((admission.ServiceAccountAdmission(store, chance),) if config.pod_accounts else ()),
    )
    plugins = (
        *(ResourceStep(pods, step) for step in on_pods),
        ResourceStep(is_one_of(*RESOURCES_WITH_CLASS), ClassDefaults(store)),
    )
    callouts = WebhookClient(store, chance)
    conversions, kubelets = Converter(callouts, definitions), KubeletClient(store, config.kubelet)
    webhooks = AdmissionWebhooks(store, rows, callouts, conversions, authorize, Pipeline(reading), Pipeline(plugins))
    requests, restriction = SigningRequests(authorize, now), NodeRestriction(store, authorize)
    nodes_write = is_one_of(*RESTRICTED_RESOURCES)
    prepare = Pipeline(
        [
            *(*reading, ResourceStep(nodes_write, restriction)),
            *(
                ResourceStep(requested, requests.prepare),
                PureStep(ownership.track_update),
                admission.NamespaceLifecycle(store),
            ),
            *plugins,
            webhooks.mutate,
        ]
    )
    judges = policies, webhooks.validate
    settle = Pipeline(
        [
            ResourceStep(nodes_write, restriction.check_deletion),
            *((ResourceStep(giving, EscalationCheck(authorize)),) if isinstance(authorize, RbacAuthorizer) else ()),
            *(
                ResourceStep(is_one_of("namespaces"), admission.protect_immortal_namespaces),
                admission.prepare_for_write,
            ),
            *(
                ResourceStep(is_one_of(SERVICES.name), addresses),
                PureStep(validation.validation_step),
                ResourceStep(is_custom, PureStep(definitions.validate)),
            ),
            *(
                ResourceStep(crds, PureStep(rules.validate)),
                ResourceStep(hooks, PureStep(policy_rules.validate)),
                ResourceStep(requested, requests.check),
            ),
            *(
                PureStep(advice.add_warnings),
                PureStep(ownership.ignore_timestamp_changes),
                ResourceStep(bearers, limits.check),
            ),
            *(PodSecurity(store), *judges),
            ResourceQuotaAdmission(
                store, rows.info_for(RESOURCE_QUOTAS), now
            ),  # the last: what is charged follows at once
        ]
    )
    verbs = Verbs(
        *(store, now, prepare, settle, ownership.apply, chance),
        unrestricted=config.unrestricted_update,
        convert=conversions,
        admission_validate=Pipeline(judges),
        is_allowed=lambda user, verb, target: authorize(Attributes(user, verb, target)),
    )
    posted = {
        **TokensAndBindings(verbs, rows, account_tokens).handlers(),
        ("pods", "eviction"): EvictionHandler(verbs, rows.info_for(DISRUPTION_BUDGETS)).evict,
    }
    reviews, checked = (
        ReviewHandlers(rows, authorize, account_tokens, UnionAuthenticator(authenticators).user_for_token),
        TypedBodies(types).typed_handler,
    )
    special = {
        **{at: checked(handler) for at, handler in reviews.handlers().items()},
        **{
            at: checked(restriction.restricted_handler(webhooks.admitted_handler(handler)))
            for at, handler in posted.items()
        },
        **dict.fromkeys(CONNECT_SUBRESOURCES, ConnectHandler(store, webhooks).handle),
        ("pods", "log"): kubelets.pod_log,
        ("*", "scale"): checked(ScaleHandler(verbs, webhooks).handle),
    }
    documents = DocumentCache(rows, table.schemas)
    closing = callouts.close, kubelets.close
    return Server(
        rows, verbs, documents, version_info(table.version), authorize, objection, special, close_callbacks=closing
    )


def build_authorizer(config: ApiServerConfig, store: Store) -> tuple[Authorize, Callable[[Attributes], str]]:
    """Who may do what, and why somebody may not: by the rules for nodes, and by roles."""
    if config.authorization != "RBAC":
        return allow_all, no_denial_reason
    nodes = NodeAuthorizer(NodeGraph(store), node_rules())
    found = RbacAuthorizer(RoleIndex(store), nodes.denial_reason)
    return found, found.denial_reason


def service_range(config: ApiServerConfig) -> Network:
    try:
        return ipaddress.ip_network(config.service_cluster_ip_range)
    except ValueError as error:
        raise ValueError(f"serviceClusterIpRange: {error}") from error


RELEASES = {"v1.34.3": ("df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "2025-12-09T14:59:13Z")}
"""The commit of each release of Kubernetes that our data are of, and when it was built."""


def version_info(version: str) -> Object:
    """What /version says: of which release of Kubernetes it is the API, and which Python runs it.

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
    own = config.service_account_signing_key_file
    signing = Path(own) if own else folder / "pki" / "service-accounts.key"
    keys = load_token_keys(signing, map(Path, config.service_account_key_files))
    return ServiceAccountTokens(store, keys, config.service_account_issuer, now, tuple(config.api_audiences))


def build_inflight_limiter(config: ApiServerConfig) -> InflightLimiter:
    return InflightLimiter({READ_ONLY: config.max_requests_inflight, MUTATING: config.max_mutating_requests_inflight})


def build_connection_limiter(config: ApiServerConfig) -> ConnectionLimiter:
    """The bounds on connections, as far as the process may open files."""
    files = raise_open_file_limit(config.max_connections + MAX_UNAUTHENTICATED + RESERVED_FILES)
    unknown = min(MAX_UNAUTHENTICATED, files // 4)
    return ConnectionLimiter(
        min(config.max_connections, files - unknown - RESERVED_FILES), config.max_connections_per_user, unknown
    )


def build_request_handler(
    config: ApiServerConfig,
    server: Server,
    account_tokens: ServiceAccountTokens,
    inflight_limiter: InflightLimiter,
    connection_limiter: ConnectionLimiter,
) -> RequestHandler:
    """The server as its clients find it: counted, timed, watched over, and with pages about itself."""
    store, now = server.verbs.store, server.verbs.now
    storage = StorageCheck(store, server.registry.info_for(NAMESPACES))
    health = HealthHandlers({"ping": ping, "storage": storage, BOOTSTRAP_CHECK: partial(check_bootstrap_roles, store)})
    pages: dict[str, PathHandler] = {
        "metrics": MetricsHandler(
            ServerCollector(store, lambda: inflight_limiter.inflight, lambda: connection_limiter.counts)
        ),
        **health.path_handlers(),
        **OpenIdHandlers(account_tokens).path_handlers(),
    }
    auditor = None
    if config.audit_log_path:
        policy = load_policy(Path(config.audit_policy_file)) if config.audit_policy_file else METADATA_POLICY
        largest, backups = config.audit_log_maxsize << 20, config.audit_log_maxbackup
        auditor = Auditor(
            policy, AuditLog(config.audit_log_path, max_bytes=largest, backups=backups), server.authorize, now
        )
    return RequestHandler(replace(server, path_handlers=pages), config.request_timeout, auditor)


def build_authenticators(config: ApiServerConfig, account_tokens: ServiceAccountTokens) -> list[Authenticator]:
    """How users are known."""
    ways: list[Authenticator] = []
    if config.token_auth_file:
        users = ReloadingFile(Path(config.token_auth_file), load_token_file)
        ways.append(StaticTokenAuthenticator(users, rejects_kubectl=config.kubectl_ephemeral_token))
    tokens = ReloadingFile(Path(config.file_rootpath) / TOKENS, load_tokens)
    return [*ways, EphemeralTokenAuthenticator(tokens, account_tokens.now), authenticate_certificate, account_tokens]


async def start_listeners(
    config: ApiServerConfig, http_handler: HttpHandler, folder: Path, group: asyncio.TaskGroup
) -> dict[str, HttpServer]:
    found = {}
    if (secure := parse_address(config.secure_address)) is not None:
        tls = server_tls_context(config, folder, secure.host)
        found["secure"] = await start_http_server(http_handler, secure.host, secure.port, tls, group=group)
    local = parse_address(config.local_address) if config.authn_allow_localhost else None
    if local is not None:
        if not local.is_loopback:
            raise ValueError(f"localAddress: {local} is not on loopback, and plain HTTP is for this machine alone")
        trusting = replace(
            http_handler.authenticate,
            authenticators=[*http_handler.authenticate.authenticators, authenticate_localhost],
        )
        found["local"] = await start_http_server(
            replace(http_handler, authenticate=trusting), local.host, local.port, group=group
        )
    return found


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
    """The CAs by whose certificates clients are known."""
    own = [Path(config.tls.client_ca)] if config.tls.client_ca else []
    return [CertificateAuthority(folder / "pki").certificate_file, *own]


def bound_address(http_server: HttpServer) -> str:
    host, port, *_ = http_server.addresses[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def compact_history(store: Store, seconds: float) -> None:
    """Forget what happened longer ago than that."""
    marks: deque[tuple[float, int]] = deque()
    while True:
        await asyncio.sleep(seconds / COMPACTIONS_PER_RETENTION)
        moment = time.monotonic()
        marks.append((moment, store.revision))
        while marks and marks[0][0] <= moment - seconds:
            store.compact_events(marks.popleft()[1])
