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

from tapestry.apiserver import bootstrap, own_service
from tapestry.apiserver.access.audit_policy import WHO_DID_WHAT, policy_in
from tapestry.apiserver.access.auditing import Auditor
from tapestry.apiserver.access.authentication import (
    Authenticator,
    StaticTokens,
    Way,
    by_certificate,
    by_place,
    token_file,
)
from tapestry.apiserver.access.bootstrap_roles import BOOTSTRAPPED, has_roles
from tapestry.apiserver.access.certificates import Authority, server_context
from tapestry.apiserver.access.ephemeral import NAME as TOKENS
from tapestry.apiserver.access.ephemeral import EphemeralTokens, sweep, tokens_in
from tapestry.apiserver.access.escalation import BINDINGS, ROLES, Escalation
from tapestry.apiserver.access.followed import Followed
from tapestry.apiserver.access.handshakes import ask_for_certificates
from tapestry.apiserver.access.node_graph import NodeGraph
from tapestry.apiserver.access.nodes import NodeAuthorizer, node_rules
from tapestry.apiserver.access.openid import OpenId
from tapestry.apiserver.access.rbac import Authorizer, Roles
from tapestry.apiserver.access.reviews import Reviews
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.access.signing import keys_in
from tapestry.apiserver.admission import plain as admission
from tapestry.apiserver.admission.callouts import Callouts
from tapestry.apiserver.admission.classes import CLASSED, Classes
from tapestry.apiserver.admission.limits import LimitRanges
from tapestry.apiserver.admission.node_restriction import RESTRICTED, NodeRestriction
from tapestry.apiserver.admission.pod_security import PodSecurity
from tapestry.apiserver.admission.policies import Policies
from tapestry.apiserver.admission.policy_rules import MATCHES, PolicyRules
from tapestry.apiserver.admission.quota import Quotas
from tapestry.apiserver.admission.webhooks import Webhooks
from tapestry.apiserver.advice import kinds as advice
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.customs.conversions import Conversions
from tapestry.apiserver.customs.definitions import DefinitionRules, Definitions
from tapestry.apiserver.defaults import kinds as defaults
from tapestry.apiserver.documents.documents import Documents
from tapestry.apiserver.ownership.apply import Ownership
from tapestry.apiserver.ownership.shapes import Shapes
from tapestry.apiserver.pipeline import Only, Pipeline, Pure, TypedReading, is_built_in, is_custom, stored
from tapestry.apiserver.rows import Rows, built_in
from tapestry.apiserver.server import Attributes, Authorize, Page, Server, everybody_may, no_objection
from tapestry.apiserver.service_addresses import Addresses, Network
from tapestry.apiserver.serving.clients import MOST_UNKNOWN, Clients
from tapestry.apiserver.serving.gate import READING, WRITING, Gate
from tapestry.apiserver.serving.health import Durability, Health, ping
from tapestry.apiserver.serving.http import Listener, serve
from tapestry.apiserver.serving.listening import Listening
from tapestry.apiserver.serving.metrics import Holdings, MetricsPage
from tapestry.apiserver.serving.reception import Mounted, Reception
from tapestry.apiserver.storage.backends import opened_store
from tapestry.apiserver.storage.store import Store
from tapestry.apiserver.subresources.bodies import Bodies
from tapestry.apiserver.subresources.connections import CONNECTIONS, Connections
from tapestry.apiserver.subresources.evictions import Evictions
from tapestry.apiserver.subresources.kubelets import Kubelets
from tapestry.apiserver.subresources.parts import REQUESTS
from tapestry.apiserver.subresources.plain import Subresources
from tapestry.apiserver.subresources.scales import Scales
from tapestry.apiserver.subresources.signing_requests import SigningRequests
from tapestry.apiserver.types import Types
from tapestry.apiserver.validation import kinds as validation
from tapestry.apiserver.verbs import Verbs
from tapestry.apiserver.workers import Worker
from tapestry.kube.objects import NOTHING, Object
from tapestry.kube.resources import CRDS, DISRUPTION_BUDGETS, NAMESPACES, RESOURCE_QUOTAS, SERVICES
from tapestry.process.addresses import parse_address
from tapestry.process.audit import Audit
from tapestry.process.files import open_files
from tapestry.process.logs import logger

log = logger(__name__)

COMPACTIONS = 5
"""How often history is cut, in the time that it goes back."""
OTHER_FILES = 256
"""Files that a server may have open beside connections."""
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "::1")
"""What the server may always be called."""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    server: Server
    reception: Reception
    """The server as its clients find it."""
    store: Store
    accounts: Accounts
    addresses: dict[str, str]
    """Where: under `secure` and `local`."""
    folder: Path


@asynccontextmanager
async def running(
    config: ApiServerConfig,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    mounted: Mapping[str, Mounted] = NOTHING,
) -> AsyncIterator[Running]:
    """Serve as configured, for as long as the context lasts; raises ValueError or OSError where that is impossible."""
    folder = Path(config.file_rootpath)
    async with opened_store(config, folder) as store:
        accounts = accounts_of(config, store, folder, now)
        sweep(folder, now())
        ways, gate, clients = ways_of(config, accounts), gate_of(config), clients_of(config)
        server = server_of(config, store, accounts, ways, now)
        worker = Worker()
        reception = replace(reception_of(config, server, accounts, gate, clients), mounted=mounted, worker=worker)
        async with asyncio.TaskGroup() as group:
            chores = store.run(), forget(store, config.history_seconds)
            tasks = [group.create_task(chore) for chore in chores]
            await store.wait_for_latest()
            await bootstrap.install(server)
            listener = Listener(
                *(reception, Authenticator(ways, is_open=config.anonymous_auth), gate, config.request_timeout),
                agent_refused=config.kubectl_disabled,
                clients=clients,
            )
            runners = await listen(config, listener, folder, group)
            try:
                addresses = {name: address_of(runner) for name, runner in runners.items()}
                if "secure" in runners:
                    await own_service.publish(server, service_range(config), *runners["secure"].addresses[0][:2])
                    authorities = "".join(each.read_text() for each in client_authorities(config, folder))
                    front_proxies = Authority(folder / "pki", "front-proxy-ca")
                    await bootstrap.publish_authorities(server, authorities, front_proxies.certificate())
                log.info("serving", objects=sum(map(store.count, store.resources())), **addresses)
                yield Running(server, reception, store, accounts, addresses, folder)
            finally:
                for runner in runners.values():
                    await runner.cleanup()
                await server.close()
                worker.close()
                for task in tasks:
                    task.cancel()
                if reception.auditor is not None:
                    reception.auditor.file.close()


def server_of(
    config: ApiServerConfig, store: Store, accounts: Accounts, ways: list[Way], now: Callable[[], datetime]
) -> Server:
    table = built_in()
    rows, types = Rows(table.rows), Types(table.types)
    authorize, objection = authorizer_of(config, store)
    definitions, rules = Definitions(store, rows, types), DefinitionRules(rows, now)
    definitions.load()
    ownership = Ownership(Shapes(table.types), now, from_the_start=config.managed_fields == "Always")
    chance, limits = random.Random(), LimitRanges(store)
    addresses = Addresses(store, service_range(config), chance)
    addresses.load()
    policies, policy_rules = Policies(store, rows, authorize), PolicyRules(rows, table.types)
    crds, hooks, requested = stored(CRDS.name), stored(*MATCHES), stored(REQUESTS)
    pods, bearers, giving = stored("pods"), stored("pods", "persistentvolumeclaims"), stored(*ROLES, *BINDINGS)
    reading = (
        *(Only(is_built_in, Pure(TypedReading(types))), Only(is_custom, Pure(definitions.read))),
        *(Only(stored("secrets"), Pure(admission.plain_secrets)), Pure(defaults.step)),
        *(Only(crds, Pure(rules.default)), Only(hooks, Pure(policy_rules.default))),
    )
    on_pods = (
        *(limits.default, admission.Priorities(store), admission.default_tolerations),
        *((admission.PodAccounts(store, chance),) if config.pod_accounts else ()),
    )
    plugins = (*(Only(pods, step) for step in on_pods), Only(stored(*CLASSED), Classes(store)))
    callouts = Callouts(store, chance)
    conversions, kubelets = Conversions(callouts, definitions), Kubelets(store, config.kubelet)
    webhooks = Webhooks(store, rows, callouts, conversions, authorize, Pipeline(reading), Pipeline(plugins))
    requests, restriction = SigningRequests(authorize, now), NodeRestriction(store, authorize)
    nodes_write = stored(*RESTRICTED)
    prepare = Pipeline(
        [
            *(*reading, Only(nodes_write, restriction)),
            *(Only(requested, requests.prepare), Pure(ownership.track), admission.Namespaces(store)),
            *plugins,
            webhooks.mutate,
        ]
    )
    judges = policies, webhooks.validate
    settle = Pipeline(
        [
            Only(nodes_write, restriction.deletion),
            *((Only(giving, Escalation(authorize)),) if isinstance(authorize, Authorizer) else ()),
            *(Only(stored("namespaces"), admission.immortal), admission.kinds),
            *(Only(stored(SERVICES.name), addresses), Pure(validation.step), Only(is_custom, Pure(definitions.check))),
            *(Only(crds, Pure(rules.settle)), Only(hooks, Pure(policy_rules.settle)), Only(requested, requests.check)),
            *(Pure(advice.step), Pure(ownership.steady), Only(bearers, limits.check)),
            *(PodSecurity(store), *judges),
            Quotas(store, rows.of(RESOURCE_QUOTAS), now),  # the last: what is charged follows at once
        ]
    )
    verbs = Verbs(
        *(store, now, prepare, settle, ownership.apply, chance),
        unrestricted=config.unrestricted_update,
        convert=conversions,
        judge=Pipeline(judges),
        may=lambda user, verb, target: authorize(Attributes(user, verb, target)),
    )
    posted = {
        **Subresources(verbs, rows, accounts).handlers(),
        ("pods", "eviction"): Evictions(verbs, rows.of(DISRUPTION_BUDGETS)).evict,
    }
    reviews, checked = Reviews(rows, authorize, accounts, Authenticator(ways).by_token), Bodies(types).checked
    special = {
        **{at: checked(handler) for at, handler in reviews.handlers().items()},
        **{at: checked(restriction.guarded(webhooks.guarded(handler))) for at, handler in posted.items()},
        **dict.fromkeys(CONNECTIONS, Connections(store, webhooks).handle),
        ("pods", "log"): kubelets.log,
        ("*", "scale"): checked(Scales(verbs, webhooks).handle),
    }
    documents = Documents(rows, table.types)
    closing = callouts.close, kubelets.close
    return Server(rows, verbs, documents, version_of(table.version), authorize, objection, special, closing=closing)


def authorizer_of(config: ApiServerConfig, store: Store) -> tuple[Authorize, Callable[[Attributes], str]]:
    """Who may do what, and why somebody may not: by the rules for nodes, and by roles."""
    if config.authorization != "RBAC":
        return everybody_may, no_objection
    nodes = NodeAuthorizer(NodeGraph(store), node_rules())
    found = Authorizer(Roles(store), nodes.objection)
    return found, found.objection


def service_range(config: ApiServerConfig) -> Network:
    try:
        return ipaddress.ip_network(config.service_cluster_ip_range)
    except ValueError as error:
        raise ValueError(f"serviceClusterIpRange: {error}") from error


RELEASES = {"v1.34.3": ("df11db1c0f08fab3c0baee1e5ce6efbf816af7f1", "2025-12-09T14:59:13Z")}
"""The commit of each release of Kubernetes that our data are of, and when it was built."""


def version_of(version: str) -> Object:
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


def accounts_of(config: ApiServerConfig, store: Store, folder: Path, now: Callable[[], datetime]) -> Accounts:
    own = config.service_account_signing_key_file
    signing = Path(own) if own else folder / "pki" / "service-accounts.key"
    keys = keys_in(signing, map(Path, config.service_account_key_files))
    return Accounts(store, keys, config.service_account_issuer, now, tuple(config.api_audiences))


def gate_of(config: ApiServerConfig) -> Gate:
    return Gate({READING: config.max_requests_inflight, WRITING: config.max_mutating_requests_inflight})


def clients_of(config: ApiServerConfig) -> Clients:
    """The bounds on connections, as far as the process may open files."""
    files = open_files(config.max_connections + MOST_UNKNOWN + OTHER_FILES)
    unknown = min(MOST_UNKNOWN, files // 4)
    return Clients(min(config.max_connections, files - unknown - OTHER_FILES), config.max_connections_per_user, unknown)


def reception_of(
    config: ApiServerConfig, server: Server, accounts: Accounts, gate: Gate, clients: Clients
) -> Reception:
    """The server as its clients find it: counted, timed, watched over, and with pages about itself."""
    store, now = server.verbs.store, server.verbs.now
    storage = Durability(store, server.rows.of(NAMESPACES))
    health = Health({"ping": ping, "storage": storage, BOOTSTRAPPED: partial(has_roles, store)})
    pages: dict[str, Page] = {
        "metrics": MetricsPage(Holdings(store, lambda: gate.under_way, lambda: clients.states)),
        **health.pages(),
        **OpenId(accounts).pages(),
    }
    auditor = None
    if config.audit_log_path:
        policy = policy_in(Path(config.audit_policy_file)) if config.audit_policy_file else WHO_DID_WHAT
        largest, backups = config.audit_log_maxsize << 20, config.audit_log_maxbackup
        auditor = Auditor(policy, Audit(config.audit_log_path, largest=largest, backups=backups), server.authorize, now)
    return Reception(replace(server, pages=pages), config.request_timeout, auditor)


def ways_of(config: ApiServerConfig, accounts: Accounts) -> list[Way]:
    """How users are known."""
    ways: list[Way] = []
    if config.token_auth_file:
        users = Followed(Path(config.token_auth_file), token_file)
        ways.append(StaticTokens(users, kubectl_refused=config.kubectl_ephemeral_token))
    tokens = Followed(Path(config.file_rootpath) / TOKENS, tokens_in)
    return [*ways, EphemeralTokens(tokens, accounts.now), by_certificate, accounts]


async def listen(
    config: ApiServerConfig, listener: Listener, folder: Path, group: asyncio.TaskGroup
) -> dict[str, Listening]:
    found = {}
    if (secure := parse_address(config.secure_address)) is not None:
        tls = tls_of(config, folder, secure.host)
        found["secure"] = await serve(listener, secure.host, secure.port, tls, group=group)
    local = parse_address(config.local_address) if config.authn_allow_localhost else None
    if local is not None:
        if not local.is_loopback:
            raise ValueError(f"localAddress: {local} is not on loopback, and plain HTTP is for this machine alone")
        trusting = replace(listener.authenticate, ways=[*listener.authenticate.ways, by_place])
        found["local"] = await serve(replace(listener, authenticate=trusting), local.host, local.port, group=group)
    return found


def tls_of(config: ApiServerConfig, folder: Path, host: str) -> Any:
    authority = Authority(folder / "pki")
    authority.certificate()
    if config.tls.certificate:
        certificate, key = Path(config.tls.certificate), Path(config.tls.key)
    else:
        certificate, key = authority.server([*NAMES, *([host] if host and host not in NAMES else [])])
    clients = client_authorities(config, folder)
    context = server_context(certificate, key, clients)
    ask_for_certificates(context, clients)
    return context


def client_authorities(config: ApiServerConfig, folder: Path) -> list[Path]:
    """The CAs by whose certificates clients are known."""
    own = [Path(config.tls.client_ca)] if config.tls.client_ca else []
    return [Authority(folder / "pki").certificate_file, *own]


def address_of(runner: Listening) -> str:
    host, port, *_ = runner.addresses[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def forget(store: Store, seconds: float) -> None:
    """Forget what happened longer ago than that."""
    marks: deque[tuple[float, int]] = deque()
    while True:
        await asyncio.sleep(seconds / COMPACTIONS)
        moment = time.monotonic()
        marks.append((moment, store.revision))
        while marks and marks[0][0] <= moment - seconds:
            store.forget_events(marks.popleft()[1])
