"""Joining: what makes a physical cluster one that lends, and the binding of it.

    below   the mount namespace with its safeguards, the priority class, the kind of policies and the owner's first
            one, and an account for the syncer with the rights of `syncer_below` and no others
    above   a Secret with a kubeconfig of that account, and the ClusterBinding

Whoever joins is an administrator of both clusters; what is made here needs neither afterwards.  Every step looks first
and writes only what differs, so a second run changes nothing, and renews the token when most of its life is over.  What
is there and not marked as ours is never taken over.

The marks are the virtual cluster and the binding's name, not its UID: that is not known yet, and the syncer, which goes
by the UID, is to leave alone what it stands on.
"""

import asyncio
import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import yaml

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS, AllowedVolumes, SecretReference
from tapestry.apis.mount_labels import enforced_level
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.permissions import (
    Permission,
    Placeholder,
    policy_rules,
    single_permissions,
    syncer_physical_permissions,
    with_names,
)
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.apis.priorities import PRIORITY_CLASSES, priority_class
from tapestry.client.access import Access
from tapestry.client.addresses import AddressPolicy
from tapestry.client.errors import KubeconfigError
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.waiting import wait_for
from tapestry.kube.crds import InvalidSpec, crd, decode_spec
from tapestry.kube.errors import Forbidden, NotFound
from tapestry.kube.names import hashed_name, safe_label_value
from tapestry.kube.objects import (
    Object,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    object_named,
    uid_of,
    value_at,
    with_type_meta,
)
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    NAMESPACES,
    NODES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from tapestry.manager import safeguards
from tapestry.manager.binding_errors import BindingError
from tapestry.manager.connectivity import (
    KUBECONFIG_KEY,
    Connect,
    access_from_secret,
    claims_of,
    expiry_in,
    probe_cluster,
)
from tapestry.manager.installation import INSTALL_NAME as MANAGER_NAME
from tapestry.manager.installation import host_ports_namespace
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult
from tapestry.manager.mount_namespaces import apply_mount_namespace, record_safeguards, select_mount_namespace
from tapestry.manager.offers import DEFAULT_OFFER, Offer, policy_spec, validate_offer
from tapestry.manager.safeguards import Safeguards, apply_network_policy, apply_quota
from tapestry.manager.volume_policies import SyncerAccount, apply_volume_policies, check_volumes, remove_stale_policies

TOKEN_SECONDS = int(timedelta(days=30).total_seconds())
RENEWED_AT = 0.8
"""The part of a token's life after which it is renewed."""

RIGHTS_TIMEOUT, RIGHTS_INTERVAL = 15.0, 0.5
"""Seconds for a server to get to know new roles, and between two questions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be joined, and how."""

    name: str
    cluster_id: str
    mount_namespace: str = ""
    """Where our pods run; join chooses one where it is empty."""
    taint: bool = False
    """Whether virtual nodes bar pods that do not tolerate them."""
    offer: Offer = field(default_factory=Offer)
    """What the owner lends; what it says nothing about stays as it is."""
    safeguards: Safeguards = field(default_factory=Safeguards)
    """What limits us there."""
    volumes: AllowedVolumes = field(default_factory=AllowedVolumes)
    """Which volumes may cross, as the binding says if there is one: more rights go with them."""
    metadata: tuple[str, ...] = ()
    """What the binding lists in `allowedMetadata`; empty to leave that as it is."""
    namespace: str = ""
    """Namespace of the Secret above; empty for the manager's own."""


async def join(
    plan: Plan, virtual: Cluster, physical: Cluster, access: Access, *, connect: Connect, now: datetime
) -> None:
    """Join the cluster that `access` opens.  Raises JoinError, before anything is written where that is possible."""
    validate_offer(plan.offer)
    safeguards.validate_safeguards(plan.safeguards)
    uid = await virtual.identity()
    binding = await virtual.find(CLUSTER_BINDINGS, object_named(plan.name))
    mount = await select_mount_namespace(plan.mount_namespace, binding, uid, physical)
    plan = replace(plan, mount_namespace=mount, volumes=allowed_volumes(plan, binding))
    await check_fit(plan, uid, virtual, physical)
    plan = replace(
        plan,
        metadata=await allowed_metadata(plan, binding, physical),
        namespace=plan.namespace or await manager_namespace(virtual),
    )
    await check_volumes(plan.name, plan.volumes, physical, are_trusted=plan.safeguards.trust_volumes)
    kubeconfig(access, "any")
    if AddressPolicy().denial_reason(urlsplit(access.server).hostname or ""):
        note = "loopback; syncers reach it only on that machine, and the manager refuses it without --allow-loopback"
        physical.report(Step(StepResult.WARNING, physical.role, access.server, note))
    namespace, account = await prepare(plan, uid, physical)
    secret = await apply_kubeconfig_secret(plan, uid, virtual, physical, account, access, now)
    wanted = desired_binding(plan)
    if binding is None and enforced_level(namespace) == "restricted":
        wanted["spec"]["podSecurity"] = "restricted"  # the default would be looser than what the owner enforces
    await virtual.apply(CLUSTER_BINDINGS, wanted)
    await check_rights(plan, secret, account, physical, connect)


# -- before


async def check_fit(plan: Plan, uid: str, virtual: Cluster, physical: Cluster) -> None:
    """Raises JoinError where the binding could not be made, or would not be served."""
    identity = await physical.identity()
    if uid == identity:
        raise JoinError("both kubeconfigs lead to one cluster, and a cluster cannot lease itself; name two")
    try:
        decode_spec(CLUSTER_BINDING, desired_binding(plan))
    except InvalidSpec as error:
        raise JoinError(f"{error}; choose another with --cluster-id or --mount-namespace") from error
    try:
        bindings = await virtual.client.list(CLUSTER_BINDINGS)
    except NotFound:
        install = "tapestry manifests | kubectl apply -f -"
        raise JoinError(f"the virtual cluster does not know ClusterBindings; run `{install}` there first") from None
    accounts = await physical.client.list(
        SERVICE_ACCOUNTS, labels=f"{keys.VIRTUAL_CLUSTER}={virtual_cluster_label(uid)}"
    )
    joined = {labels_of(account).get(keys.CLUSTER_BINDING, "") for account in accounts}
    for binding in bindings:
        if complaint := binding_conflict(binding, plan, identity, joined):
            raise JoinError(complaint)


def allowed_volumes(plan: Plan, binding: Object | None) -> AllowedVolumes:
    """What the binding says of volumes; nothing, where it has yet to be made."""
    return decode_spec(CLUSTER_BINDING, binding).allowed_volumes if binding is not None else plan.volumes


async def allowed_metadata(plan: Plan, binding: Object | None, physical: Cluster) -> tuple[str, ...]:
    """What the binding lists, and where nodes are simulated also the keys that their kubelets read."""
    if not await physical.client.list(NODES, labels=keys.SIMULATED_NODE):
        return plan.metadata
    listed = decode_spec(CLUSTER_BINDING, binding).allowed_metadata if binding is not None else ()
    return tuple(dict.fromkeys((*listed, *plan.metadata, f"{keys.SIMULATED_PREFIX}*")))


def binding_conflict(binding: Object, plan: Plan, identity: str, joined: set[str]) -> str:
    """What an existing binding has against the plan, if anything; `joined` are those with an account there."""
    name, spec, pinned = name_of(binding), binding["spec"], value_at(binding, "status", "identity")
    if name != plan.name:
        if spec["clusterID"] == plan.cluster_id:
            return f"clusterID {plan.cluster_id} belongs to ClusterBinding {name}; choose another with --cluster-id"
        is_the_same = pinned == identity or (pinned is None and safe_label_value(name) in joined)
        return f"the cluster has joined as {name} already; unjoin that first" if is_the_same else ""
    if is_deleting(binding):
        return f"ClusterBinding {name} is being deleted; wait for that, or see to it with `tapestry unjoin {name}`"
    if spec["clusterID"] != plan.cluster_id:
        return (
            f"ClusterBinding {name} has clusterID {spec['clusterID']}, for good; give --cluster-id {spec['clusterID']}"
        )
    mount = spec.get("mountNamespace", plan.mount_namespace)
    if mount != plan.mount_namespace:
        return f"ClusterBinding {name} has mountNamespace {mount}, for good; give --mount-namespace {mount}"
    if pinned not in (None, identity):
        return f"ClusterBinding {name} is of another cluster, {pinned}; choose another name, or unjoin it first"
    return ""


# -- below


def owner_labels(uid: str, binding: str) -> dict[str, str]:
    """The labels of what join makes for one binding of the virtual cluster with that kube-system UID."""
    return {
        keys.MANAGED_BY: keys.TAPESTRY,
        keys.VIRTUAL_CLUSTER: virtual_cluster_label(uid),
        keys.CLUSTER_BINDING: safe_label_value(binding),
    }


def selector(labels: dict[str, str]) -> str:
    """What selects the objects with all of these labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def account_name(uid: str, binding: str) -> str:
    """The account and the roles below: bindings of one name, of two virtual clusters, do not meet."""
    return hashed_name(f"tapestry-syncer-{binding}", uid, binding)


def policy_name(uid: str, binding: str) -> str:
    return hashed_name(binding, uid, binding)


async def prepare(plan: Plan, uid: str, physical: Cluster) -> tuple[Object, Object]:
    """Have everything below; returns the mount namespace and the syncer's account."""
    asked, mount = plan.safeguards, plan.mount_namespace
    namespace = await apply_mount_namespace(mount, uid, asked, physical)
    await physical.apply(PRIORITY_CLASSES, priority_class(), shared=True)
    definition = crd(POLICY)
    labelled = {**definition["metadata"], "labels": {keys.MANAGED_BY: keys.TAPESTRY}}
    await physical.apply(CRDS, {**definition, "metadata": labelled}, shared=True)
    await apply_policy(plan, uid, physical)
    name, labels = policy_name(uid, plan.name), owner_labels(uid, plan.name)
    has_quota = await apply_quota(name, mount, labels, asked, physical)
    is_isolated = await apply_network_policy(name, mount, labels, asked, namespace, physical)
    name, account = account_name(uid, plan.name), None
    limited, level = SyncerAccount(name, mount, virtual_cluster_label(uid)), enforced_level(namespace)
    limiting = await apply_volume_policies(limited, plan.volumes, level, labels, physical)  # before the rights
    for resource, wanted in account_objects(name, plan, labels):
        made = await physical.apply(resource, wanted)
        account = account or made
    assert account is not None
    await remove_stale_policies(limiting, labels, physical)
    set_up = [
        safeguards.NETWORK_POLICY if is_isolated else safeguards.NO_NETWORK_POLICY,
        *([safeguards.QUOTA] if has_quota else []),
        *([safeguards.VOLUME_POLICIES] if limiting and plan.volumes.drivers else []),
    ]
    await record_safeguards(namespace, set_up, physical)
    return namespace, account


async def apply_policy(plan: Plan, uid: str, physical: Cluster) -> None:
    """The owner's policy; where the owner has written one without us and nothing new is offered, that one stands."""
    name = policy_name(uid, plan.name)
    current = await wait_for(physical.client, POLICIES, name, until=lambda _: True)  # the kind may be seconds old
    others = [each for each in await physical.client.list(POLICIES) if applies_to_plan(plan, each)]
    if current is None and others and plan.offer == Offer():
        note = "decides what is lent"
        physical.report(Step(StepResult.UNCHANGED, physical.role, f"{POLICIES.kind} {name_of(others[0])}", note))
        return
    offer = plan.offer
    if current is None and offer.percent is None:
        offer = replace(offer, percent=DEFAULT_OFFER.percent)
    nodes = await physical.client.list(NODES) if offer.percent is not None else []
    resources = {each for node in nodes for each in value_at(node, "status", "allocatable", default={})}
    spec = policy_spec(plan.name, offer, resources)
    if current is not None and decode_spec(POLICY, current) == decode_spec(
        POLICY, {"spec": {**current["spec"], **spec}}
    ):
        spec = {}  # the same but for defaults that the server wrote
    await physical.apply(POLICIES, {"metadata": {"name": name, "labels": owner_labels(uid, plan.name)}, "spec": spec})


def applies_to_plan(plan: Plan, policy: Object) -> bool:
    return not is_deleting(policy) and value_at(policy, "spec", "cluster") in (plan.name, plan.cluster_id)


def syncer_rights(plan: Plan, account: str) -> list[Permission]:
    """What the syncer may do in the physical cluster; its account is in the mount namespace."""
    mount = plan.mount_namespace
    places = {
        Placeholder.MOUNT_NAMESPACE: mount,
        Placeholder.SYNCER_ACCOUNT: account,
        Placeholder.SYNCER_ACCOUNT_NAMESPACE: mount,
    }
    return with_names(syncer_physical_permissions(plan.volumes), places)


def account_objects(name: str, plan: Plan, labels: dict[str, str]) -> Iterator[tuple[Resource, Object]]:
    """The syncer's account, first, and the roles that give it its rights."""
    mount = plan.mount_namespace
    yield SERVICE_ACCOUNTS, {**labelled_metadata(name, labels, mount), "automountServiceAccountToken": False}
    rights = syncer_rights(plan, name)
    everywhere = [right for right in rights if not right.namespace]
    inside = [right for right in rights if right.namespace]
    yield from role_objects(CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, everywhere, labelled_metadata(name, labels), mount)
    yield from role_objects(ROLES, ROLE_BINDINGS, inside, labelled_metadata(name, labels, mount), mount)


def labelled_metadata(name: str, labels: dict[str, str], namespace: str | None = None) -> Object:
    return {"metadata": {**object_named(name, namespace)["metadata"], "labels": labels}}


def role_objects(
    role: Resource, binding: Resource, rights: Iterable[Permission], content: Object, mount: str
) -> Iterator[tuple[Resource, Object]]:
    name = name_of(content)
    yield role, {**content, "rules": policy_rules(rights)}
    yield (
        binding,
        {
            **content,
            "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": name},
            "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": name, "namespace": mount}],
        },
    )


# -- above


async def manager_namespace(virtual: Cluster) -> str:
    """The namespace that the manager is installed in, as its ClusterRoleBinding says.

    Only administrators write cluster-scoped objects.  A Deployment could be a tenant's, who would be given the token.
    """
    try:
        binding = await virtual.find(CLUSTER_ROLE_BINDINGS, object_named(MANAGER_NAME))
    except Forbidden:
        return keys.SYSTEM_NAMESPACE
    subjects = value_at(binding, "subjects", default=[])
    accounts = [each for each in subjects if (each["kind"], each["name"]) == (SERVICE_ACCOUNTS.kind, MANAGER_NAME)]
    return accounts[0]["namespace"] if accounts else keys.SYSTEM_NAMESPACE


def desired_binding(plan: Plan) -> Object:
    return with_type_meta(
        CLUSTER_BINDINGS,
        {
            **object_named(plan.name),
            "spec": {
                "clusterID": plan.cluster_id,
                "secretRef": {"name": plan.name, "namespace": plan.namespace or keys.SYSTEM_NAMESPACE},
                "mountNamespace": plan.mount_namespace,
                "disableNodeDefaultTaint": not plan.taint,
                **({"allowedMetadata": list(plan.metadata)} if plan.metadata else {}),
            },
        },
    )


async def apply_kubeconfig_secret(
    plan: Plan, uid: str, virtual: Cluster, physical: Cluster, account: Object, access: Access, now: datetime
) -> Object:
    """The Secret with a kubeconfig of the account; its token stays as long as it is the account's and young enough."""
    for namespace in (object_named(plan.namespace), host_ports_namespace()):
        await virtual.apply(NAMESPACES, namespace, shared=True)
    wanted = labelled_metadata(plan.name, owner_labels(uid, plan.name), plan.namespace)
    token = await reusable_token(await virtual.find(SECRETS, wanted), account, now)
    if not token:
        answer = await physical.client.request_token(name_of(account), plan.mount_namespace, seconds=TOKEN_SECONDS)
        token = answer["token"]
    data = base64.b64encode(kubeconfig(access, token)).decode()
    expires = expiry_in(claims_of([("Authorization", f"Bearer {token}")]))
    note = f"its token is good until {expires:%Y-%m-%d}" if expires else ""
    return await virtual.apply(SECRETS, {**wanted, "data": {KUBECONFIG_KEY: data}}, note=note)


async def reusable_token(secret: Object | None, account: Object, now: datetime) -> str:
    """The token in a Secret; empty where there is none that can go on."""
    if secret is None:
        return ""
    try:
        headers = await access_from_secret(secret, reference_to(secret), allow_loopback=True).credentials.headers()
    except BindingError:
        return ""
    token = next((text.removeprefix("Bearer ") for _, text in headers), "")
    return token if is_token_reusable(claims_of(headers), account, now) else ""


def reference_to(secret: Object) -> SecretReference:
    return SecretReference(name_of(secret), namespace_of(secret) or "")


def is_token_reusable(claims: Object, account: Object, now: datetime) -> bool:
    """Whether a token is this account's, not that of a namesake before it, and has not lived for most of its life."""
    issued, expires = claims.get("iat"), claims.get("exp")
    if not isinstance(issued, int) or not isinstance(expires, int):
        return False
    is_the_accounts = value_at(claims, "kubernetes.io", "serviceaccount", "uid") == uid_of(account)
    return is_the_accounts and now.timestamp() < issued + RENEWED_AT * (expires - issued)


def kubeconfig(access: Access, token: str) -> bytes:
    """A kubeconfig for the server of `access`, by a token; JoinError where a binding could not use it."""
    authority = access.verification.authority
    cluster = {
        "server": access.server,
        "certificate-authority-data": base64.b64encode(authority.read()).decode() if authority else None,
        "insecure-skip-tls-verify": access.verification.insecure or None,
        "tls-server-name": access.tls_server_name,
        "proxy-url": access.proxy_url,
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "physical", "cluster": {key: value for key, value in cluster.items() if value}}],
        "users": [{"name": "syncer", "user": {"token": token}}],
        "contexts": [{"name": "syncer", "context": {"cluster": "physical", "user": "syncer"}}],
        "current-context": "syncer",
    }
    data = yaml.safe_dump(document).encode()  # sorted, as the syncer writes it when it renews the token
    try:
        strict_access(data, allow_loopback=True)  # whether that will do, the manager decides
    except KubeconfigError as error:
        raise JoinError(f"the cluster's kubeconfig will not do for a syncer: {error}") from error
    return data


async def check_rights(plan: Plan, secret: Object, account: Object, physical: Cluster, connect: Connect) -> None:
    """Ask, as the syncer, for every right, and tell of those that are missing; JoinError where there are such."""
    access = access_from_secret(secret, reference_to(secret), allow_loopback=True)
    missing = await missing_rights(plan, access, connect)
    for right in missing:
        physical.report(Step(StepResult.MISSING, physical.role, str(right)))
    count = sum(right not in missing for right in single_permissions(syncer_rights(plan, name_of(account))))
    physical.report(Step(StepResult.GRANTED, physical.role, f"{count} rights, asked for as the syncer"))
    if missing:
        raise JoinError(f"{len(missing)} rights are missing though roles grant them; see what denies them there")


async def missing_rights(plan: Plan, access: Access, connect: Connect) -> tuple[Permission, ...]:
    """What the syncer may not do.  A server takes a moment to know new roles, so what is missing is asked for again."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RIGHTS_TIMEOUT
    while True:
        try:
            missing = (await probe_cluster(access, plan.mount_namespace, plan.volumes, connect)).missing
            if not missing or loop.time() >= deadline:
                return missing
        except BindingError as fault:
            if loop.time() >= deadline:
                raise JoinError(f"the new kubeconfig does not work: {fault.message}") from fault
        await asyncio.sleep(RIGHTS_INTERVAL)
