"""Safeguards of the owner for the mount namespace: Pod Security, ResourceQuota and NetworkPolicy.

They are written with the owner's permissions, and the syncer's account cannot change them.  A second run never relaxes
them.  Options that a run does not set stay unchanged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.apis.mount_labels import LEVELS, enforced_level, safeguards_of, stricter_level
from tapestry.kube.objects import Object, labels_of, object_named, value_at
from tapestry.kube.quantity import QuantityError, floored, parse_quantity
from tapestry.kube.resources import NETWORK_POLICIES, RESOURCE_QUOTAS
from tapestry.manager.join_steps import Cluster

DEFAULT_LEVEL = "baseline"
NONE = "none"
"""Option value that removes a limit."""
NETWORK_POLICY, NO_NETWORK_POLICY = "network-policy", "no-network-policy"
QUOTA, VOLUME_POLICIES = "quota", "volume-policies"
NO_EXEC = "no-exec"
METADATA_ADDRESSES = {"0.0.0.0/0": ["169.254.169.254/32"], "::/0": ["fd00:ec2::254/128"]}
"""Metadata addresses of cloud providers, which issue node credentials, by the block that is allowed otherwise."""


@dataclass(frozen=True, slots=True)
class Safeguards:
    """Options of the owner.  None leaves a safeguard unchanged."""

    pod_security: str | None = None
    max_cpu: str | None = None
    max_memory: str | None = None
    max_pods: str | None = None
    network_policy: bool | None = None
    ingress_from: tuple[str, ...] | None = None
    """Namespaces other than the mount namespace whose pods may connect to twins."""
    trust_volumes: bool = False
    """Allow volumes without admission policies that restrict them."""
    streams: bool | None = None
    """Allow exec, attach and port-forward into twins."""


def validate_safeguards(safeguards: Safeguards) -> None:
    """Raise ValueError, naming the option, for an invalid value."""
    if safeguards.pod_security is not None and safeguards.pod_security not in LEVELS:
        raise ValueError(f"--pod-security: {safeguards.pod_security!r} is not one of {', '.join(LEVELS)}")
    totals(safeguards)


def totals(safeguards: Safeguards) -> dict[str, str | None]:
    """Return the requested limits of the ResourceQuota by resource; None removes one.  Raise ValueError if invalid."""
    options = {
        "requests.cpu": ("--max-cpu", safeguards.max_cpu),
        "requests.memory": ("--max-memory", safeguards.max_memory),
        "pods": ("--max-pods", safeguards.max_pods),
    }
    limits: dict[str, str | None] = {}
    for resource, (option, text) in options.items():
        if text is None:
            continue
        limits[resource] = None if text == NONE else total(option, resource, text)
    return limits


def total(option: str, resource: str, text: str) -> str:
    """Return the amount in canonical form, so that a second run finds no difference."""
    try:
        amount = parse_quantity(text)
    except QuantityError as error:
        raise ValueError(f"{option}: {error}; give an amount, for example 8, or {NONE}") from None
    if amount.nano < 0 or floored(resource, amount) != amount:
        raise ValueError(f"{option}: {text} is not an amount of {resource}; give one, for example 8, or {NONE}")
    return str(amount)


def total_limits(current: Iterable[Object], requested: Mapping[str, str | None]) -> list[Object]:
    """Return the `totalLimits` of a policy with the requested limits of the ResourceQuota."""
    amounts = {each["resource"]: each["quantity"] for each in current}
    amounts |= {resource.removeprefix("requests."): amount for resource, amount in requested.items()}
    return [{"resource": resource, "quantity": amount} for resource, amount in amounts.items() if amount is not None]


# -- the mount namespace


def level_for(namespace: Object | None, requested: str | None) -> str:
    """Return the level to enforce: the current one, unless the owner requests a stricter one."""
    current = enforced_level(namespace)
    if current is None:
        return requested or DEFAULT_LEVEL
    if requested is None or requested == current or stricter_level(requested, current) == current:
        return labels_of(namespace)[keys.POD_SECURITY_ENFORCE] if namespace is not None else current
    return requested


def allows_streams(namespace: Object | None, requested: bool | None) -> bool:
    """Return whether the owner allows exec, attach and port-forward, now or earlier."""
    return NO_EXEC not in safeguards_of(namespace) if requested is None else requested


# -- quota and network policy


async def apply_quota(name: str, mount: str, labels: dict[str, str], safeguards: Safeguards, physical: Cluster) -> bool:
    """Apply the ResourceQuota with the limits requested now or earlier.  Return whether it exists."""
    requested = totals(safeguards)
    current = await physical.wait_for_stable(RESOURCE_QUOTAS, object_named(name, mount))
    hard = {**value_at(current, "spec", "hard", default={}), **requested}
    if all(total is None for total in hard.values()):
        if current is not None:
            await physical.remove(RESOURCE_QUOTAS, current)
        return False
    metadata = {"name": name, "namespace": mount, "labels": labels}
    desired = requested if current is not None else {resource: total for resource, total in requested.items() if total}
    await physical.apply(RESOURCE_QUOTAS, {"metadata": metadata, "spec": {"hard": desired}})
    return True


async def apply_network_policy(
    name: str, mount: str, labels: dict[str, str], safeguards: Safeguards, namespace: Object | None, physical: Cluster
) -> bool:
    """Apply the NetworkPolicy, unless the owner declined it now or earlier.  Return whether it exists.

    An existing one keeps its rules unless `--ingress-from` is given.
    """
    current = await physical.wait_for_stable(NETWORK_POLICIES, object_named(name, mount))
    declined = NO_NETWORK_POLICY in safeguards_of(namespace) if safeguards.network_policy is None else False
    if safeguards.network_policy is False or (declined and safeguards.ingress_from is None):
        if current is not None:
            await physical.remove(NETWORK_POLICIES, current)
        return False
    desired: Object = {"metadata": {"name": name, "namespace": mount, "labels": labels}}
    if current is None or safeguards.ingress_from is not None:
        desired["spec"] = network_rules(safeguards.ingress_from or ())
    await physical.apply(NETWORK_POLICIES, desired)
    return True


def network_rules(ingress_from: tuple[str, ...]) -> Object:
    """Allow ingress from the same and the named namespaces, and egress to everything but cloud metadata services."""
    sources: list[Object] = [{"podSelector": {}}]
    if ingress_from:
        names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(set(ingress_from))}
        sources.append({"namespaceSelector": {"matchExpressions": [names]}})
    blocks = [{"ipBlock": {"cidr": cidr, "except": excluded}} for cidr, excluded in METADATA_ADDRESSES.items()]
    return {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": sources}],
        "egress": [{"to": [{"namespaceSelector": {}}, *blocks]}],  # some network plugins match no pods by ipBlock
    }
