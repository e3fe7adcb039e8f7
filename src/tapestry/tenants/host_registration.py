"""`tapestry host add`: prepare a host cluster and register it in the management API.

    host         the shared namespace, the PriorityClass, the policy CRD for owners, the admission policies, and an
                 account for the processes of planes with exactly the rights of `host_rights`
    management   a Secret with a kubeconfig of that account, the HostCluster, and the operator's policy

Adding a host needs administrator access to it, which is not stored. Every step reads first and writes only differences,
so a second run changes nothing, except that it renews the token late in its life.
"""

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit

from tapestry.apis import keys
from tapestry.apis.hostclusters import HOST_CLUSTER, HOST_CLUSTERS
from tapestry.apis.permissions import Permission, policy_rules, single_permissions
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.apis.priorities import PRIORITY_CLASSES, priority_class
from tapestry.client.access import Access
from tapestry.client.addresses import AddressPolicy
from tapestry.client.client import Client
from tapestry.client.discovery import is_served
from tapestry.client.transport import SmallResponseTransport
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import find_condition
from tapestry.kube.crds import crd, decode_spec
from tapestry.kube.errors import Forbidden, KubeError, NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, value_at, with_type_meta
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from tapestry.manager.connectivity import KUBECONFIG_KEY, claims_of, denied_permissions, expiry_in
from tapestry.manager.join_steps import Cluster, JoinError, Step, StepResult, has_owner_labels
from tapestry.manager.joining import TOKEN_SECONDS, kubeconfig, reusable_token
from tapestry.manager.offers import Offer, policy_spec, validate_offer
from tapestry.syncer.bindings import access_from_secret
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE, REACHABLE
from tapestry.tenants.host_connection import SHARED_NAMESPACE, Connect
from tapestry.tenants.host_objects import ACCOUNT
from tapestry.tenants.host_policies import host_policies
from tapestry.tenants.host_rights import HOST_ACCOUNT, HOST_RIGHTS, OWN_TOKEN_RIGHTS, TENANT_RIGHTS

MANAGEMENT, HOST = "management", "host"
"""Roles of the two clusters in steps and errors."""
LABELS = {keys.MANAGED_BY: keys.TAPESTRY}
RIGHTS_TIMEOUT, RIGHTS_INTERVAL = 15.0, 0.5
"""Seconds for a server to apply new roles, and seconds between two checks."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Options of `tapestry host add`."""

    name: str
    spec: Object = field(default_factory=dict)
    """Fields of the HostCluster that are given. Others stay as they are."""
    has_policy: bool = True
    """Write a policy."""
    offer: Offer = field(default_factory=Offer)
    """Terms of the policy for the whole host. Fields that are None are not changed."""
    policies: tuple[Object, ...] = ()
    """Policies instead of that of the offer."""
    is_owners_policy: bool = False
    """Write policies to the host cluster, where its owner may change them, instead of the management API."""


@dataclass(frozen=True, slots=True)
class AddedHost:
    """A host cluster and the management API in which it is registered, with the access of administrators."""

    management: Cluster
    host: Cluster
    access: Access
    """Access to the host cluster, from which the stored kubeconfig takes the address and the CA."""
    connect: Connect


async def add_host(plan: HostPlan, clusters: AddedHost, now: datetime) -> None:
    """Prepare and register a host cluster. Raise JoinError, if possible before anything is written."""
    await check_plan(plan, clusters)
    account = await prepare_host(clusters.host)
    access = await apply_secret(plan, clusters, account, now)
    await check_rights(clusters.host, access, clusters.connect)
    await clusters.management.apply(HOST_CLUSTERS, host_cluster(plan))
    await apply_policies(plan, clusters)


# -- checks


async def check_plan(plan: HostPlan, clusters: AddedHost) -> None:
    """Raise JoinError if the host could not be added or would not become reachable."""
    validate_offer(plan.offer)
    decode_spec(HOST_CLUSTER, host_cluster(plan))
    for each in desired_policies(plan):
        decode_spec(POLICY, each)
    kubeconfig(clusters.access, "any")
    management, host = clusters.management, clusters.host
    try:
        identity, known = await host.identity(), await management.client.list(HOST_CLUSTERS)
        if not await is_served(host.client, ADMISSION_POLICIES):
            raise JoinError(
                "the host cluster has no ValidatingAdmissionPolicy (Kubernetes 1.31 and later), without which the "
                "stored credential could delete any namespace; upgrade the host cluster"
            )
    except Forbidden as error:
        raise JoinError(f"{error.message}; use kubeconfigs of administrators") from error
    except NotFound:
        raise JoinError(
            "the management API does not serve HostClusters; is it that of `tapestry planes run`?"
        ) from None
    check_address(plan, clusters.access, next((each for each in known if name_of(each) == plan.name), None))
    for each in known:
        pinned = value_at(each, "status", "identity")
        if name_of(each) == plan.name and pinned not in (None, identity):
            raise JoinError(f"HostCluster {plan.name} is another cluster, {pinned}; choose another name, or remove it")
        if name_of(each) == plan.name and is_deleting(each):
            raise JoinError(f"HostCluster {plan.name} is being deleted; delete its tenants, and wait")
        if name_of(each) != plan.name and pinned == identity:
            raise JoinError(f"the cluster is HostCluster {name_of(each)} already; use that, or remove it first")


def check_address(plan: HostPlan, access: Access, current: Object | None) -> None:
    """Raise JoinError if processes would refuse the address of the host cluster."""
    default = value_at(current, "spec", "allowLoopback", default=False)
    address = urlsplit(access.server).hostname or ""
    if AddressPolicy().denial_reason(address) and not plan.spec.get("allowLoopback", default):
        raise JoinError(
            f"{access.server} is only reachable on its machine; if the planes run there, use --allow-loopback"
        )


# -- host cluster


async def prepare_host(host: Cluster) -> Object:
    """Apply everything in the host cluster, the restrictions before the rights. Return the account."""
    await host.apply(NAMESPACES, labelled(SHARED_NAMESPACE), shared=True)
    await host.apply(PRIORITY_CLASSES, priority_class(), shared=True)
    definition = crd(POLICY)
    await host.apply(CRDS, {**definition, "metadata": {**definition["metadata"], "labels": LABELS}}, shared=True)
    for each in host_policies():
        is_policy = each["kind"] == ADMISSION_POLICIES.kind
        await host.apply(ADMISSION_POLICIES if is_policy else ADMISSION_POLICY_BINDINGS, each)
    for resource, obj in role_objects():
        await host.apply(resource, obj)
    return await host.apply(
        SERVICE_ACCOUNTS, {**labelled(HOST_ACCOUNT, SHARED_NAMESPACE), "automountServiceAccountToken": False}
    )


def role_objects() -> Iterator[tuple[Resource, Object]]:
    """Yield the roles of the host's account and of the accounts of tenants, and bind the former."""
    yield CLUSTER_ROLES, {**labelled(ACCOUNT), "rules": policy_rules(TENANT_RIGHTS)}
    yield CLUSTER_ROLES, {**labelled(HOST_ACCOUNT), "rules": policy_rules(HOST_RIGHTS)}
    yield CLUSTER_ROLE_BINDINGS, {**labelled(HOST_ACCOUNT), **grant(CLUSTER_ROLES)}
    yield ROLES, {**labelled(HOST_ACCOUNT, SHARED_NAMESPACE), "rules": policy_rules(OWN_TOKEN_RIGHTS)}
    yield ROLE_BINDINGS, {**labelled(HOST_ACCOUNT, SHARED_NAMESPACE), **grant(ROLES)}


def grant(role: Resource) -> Object:
    return {
        "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": HOST_ACCOUNT},
        "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": HOST_ACCOUNT, "namespace": SHARED_NAMESPACE}],
    }


def labelled(name: str, namespace: str | None = None) -> Object:
    return {"metadata": {**object_named(name, namespace)["metadata"], "labels": LABELS}}


async def check_rights(host: Cluster, access: Access, connect: Connect) -> None:
    """Check every right as the account. Servers apply new roles with a delay, so the check is repeated for a while."""
    rights = single_permissions((*HOST_RIGHTS, *OWN_TOKEN_RIGHTS))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RIGHTS_TIMEOUT
    async with Client(SmallResponseTransport(connect(access))) as client:
        while missing := await missing_rights(client, rights, has_time=loop.time() < deadline):
            if loop.time() >= deadline:
                for each in missing:
                    host.report(Step(StepResult.MISSING, host.role, str(each)))
                raise JoinError(f"{len(missing)} rights are missing although roles grant them; check what denies them")
            await asyncio.sleep(RIGHTS_INTERVAL)
    host.report(Step(StepResult.GRANTED, host.role, f"{len(rights)} rights, checked as {HOST_ACCOUNT}"))


async def missing_rights(client: Client, rights: list[Permission], *, has_time: bool) -> tuple[Permission, ...]:
    """Return the denied rights; all of them while the server does not know the token yet. Raise JoinError."""
    try:
        return await denied_permissions(client, rights)
    except KubeError as error:
        if has_time:
            return tuple(rights)
        raise JoinError(f"the new kubeconfig does not work: {error}") from error


# -- management API


async def apply_secret(plan: HostPlan, clusters: AddedHost, account: Object, now: datetime) -> Access:
    """Apply the Secret with the kubeconfig of the account. A valid token is kept until most of its life is over."""
    management = clusters.management
    await management.apply(NAMESPACES, object_named(HOSTS_NAMESPACE), shared=True)
    secret = labelled(plan.name, HOSTS_NAMESPACE)
    token = await reusable_token(await management.find(SECRETS, secret), account, now)
    if not token:
        response = await clusters.host.client.request_token(HOST_ACCOUNT, SHARED_NAMESPACE, seconds=TOKEN_SECONDS)
        token = response["token"]
    expires = expiry_in(claims_of([("Authorization", f"Bearer {token}")]))
    note = f"its token is renewed before {expires:%Y-%m-%d}" if expires else ""
    data = base64.b64encode(kubeconfig(clusters.access, token)).decode()
    applied = await management.apply(SECRETS, {**secret, "data": {KUBECONFIG_KEY: data}}, note=note)
    return access_from_secret(applied, allow_loopback=True)


def host_cluster(plan: HostPlan) -> Object:
    spec = {"secretRef": {"name": plan.name, "namespace": HOSTS_NAMESPACE}, **plan.spec}
    return with_type_meta(HOST_CLUSTERS, {**labelled(plan.name), "spec": spec})


async def apply_policies(plan: HostPlan, clusters: AddedHost) -> None:
    """Apply the policies of the plan. Without any option, an existing policy for the host stays in effect."""
    if not plan.has_policy:
        return
    cluster = clusters.host if plan.is_owners_policy else clusters.management
    await wait_for(cluster.client, POLICIES, plan.name, until=lambda _: True)  # the CRD may be new
    existing = [each for each in await cluster.client.list(POLICIES) if applies_to(each, plan.name)]
    if existing and plan.offer == Offer() and not plan.policies:
        subject = f"{POLICIES.kind} {name_of(existing[0])}"
        cluster.report(Step(StepResult.UNCHANGED, cluster.role, subject, "determines what tenants may use"))
        return
    for policy in desired_policies(plan):
        spec, current = policy["spec"], next((each for each in existing if name_of(each) == name_of(policy)), None)
        if current is not None and decode_spec(POLICY, current) == decode_spec(
            POLICY, {"spec": {**current["spec"], **spec}}
        ):
            spec = {}  # equal except for defaults that the server added
        await cluster.apply(POLICIES, {**policy, "spec": spec})


def desired_policies(plan: HostPlan) -> list[Object]:
    """Return the policies of a plan. They apply to its host cluster, whatever they say."""
    return [
        {
            **labelled(value_at(each, "metadata", "name", default=plan.name)),
            "spec": {**(each.get("spec") or {}), "cluster": plan.name},
        }
        for each in plan.policies or ({"spec": policy_spec(plan.name, plan.offer, ())},)
    ]


def applies_to(policy: Object, host: str) -> bool:
    return not is_deleting(policy) and value_at(policy, "spec", "cluster") == host


async def remove_registration(name: str, management: Cluster) -> None:
    """Delete the Secret and the policy that `add_host` has created in the management API."""
    for resource, namespace in ((SECRETS, HOSTS_NAMESPACE), (POLICIES, None)):
        found = await management.client.find(resource, name, namespace)
        if found is not None and has_owner_labels(found, labelled(name)):
            await management.remove(resource, found)


async def wait_for_host(name: str, management: Client, timeout: float) -> Object:
    """Wait until a process of planes has connected to a host cluster, and return its HostCluster. Raise JoinError."""
    last: list[Object] = []

    def is_decided(obj: Object | None) -> bool:
        last[:] = [obj] if obj is not None else []
        return obj is None or is_reachable(obj) or bool(refusal(obj))

    try:
        found = await wait_for(management, HOST_CLUSTERS, name, until=is_decided, timeout=timeout)
    except TimeoutError:
        reason = reachability(last[0]).get("message") if last else ""
        message = reason or "no process of `tapestry planes run` has connected to it"
        raise JoinError(f"HostCluster {name} is not reachable after {timeout:g} s: {message}") from None
    if found is None:
        raise JoinError(f"HostCluster {name} was deleted meanwhile")
    if message := refusal(found):
        raise JoinError(f"HostCluster {name} is refused: {message}")
    return found


def reachability(host: Object) -> Object:
    """Return the condition `Reachable` that was written for the newest spec; empty if there is none."""
    found = find_condition(value_at(host, "status", "conditions", default=[]), REACHABLE)
    is_current = found is not None and found.get("observedGeneration") == host["metadata"].get("generation")
    return found if found is not None and is_current else {}


def is_reachable(host: Object) -> bool:
    return bool(reachability(host).get("status") == "True")


def refusal(host: Object) -> str:
    """Return why processes do not connect to a host cluster at all; empty if they do, or try to."""
    condition = reachability(host)
    is_refused = condition.get("status") == "False" and condition.get("reason") not in ("Unreachable", "SecretMissing")
    return str(condition.get("message")) if is_refused else ""
