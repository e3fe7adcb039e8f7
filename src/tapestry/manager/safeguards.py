"""Safeguards: what the owner of a physical cluster sets up around the mount namespace when joining.

All of it is written with the owner's rights, and the syncer's account cannot change any of it.  Nothing is loosened by
a second run, and what a run does not mention stays as it is.
"""

from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.apis.mount_labels import LEVELS, enforced_level, safeguards_of, stricter_level
from tapestry.kube.objects import Object, labels_of, object_named, value_at
from tapestry.kube.quantity import QuantityError, floored, parse_quantity
from tapestry.kube.resources import NETWORK_POLICIES, RESOURCE_QUOTAS
from tapestry.manager.join_steps import Cluster

DEFAULT_LEVEL = "baseline"
NONE = "none"
"""Removes a total, or leaves the network policy out."""
NETWORK_POLICY, NO_NETWORK_POLICY = "network-policy", "no-network-policy"
QUOTA, VOLUME_POLICIES = "quota", "volume-policies"
METADATA_ADDRESSES = {"0.0.0.0/0": ["169.254.169.254/32"], "::/0": ["fd00:ec2::254/128"]}
"""Where cloud providers hand out credentials of the node, by the block that is allowed otherwise."""


@dataclass(frozen=True, slots=True)
class Safeguards:
    """What the owner asks for; None says nothing about it."""

    pod_security: str | None = None
    max_cpu: str | None = None
    max_memory: str | None = None
    max_pods: str | None = None
    network_policy: bool | None = None
    ingress_from: tuple[str, ...] | None = None
    """Namespaces, beside the mount namespace itself, whose pods may connect to ours."""
    trust_volumes: bool = False
    """Whether volumes may cross without admission policies that limit them."""


def validate_safeguards(safeguards: Safeguards) -> None:
    """Raises ValueError, naming the option, for what no cluster can set up."""
    if safeguards.pod_security is not None and safeguards.pod_security not in LEVELS:
        raise ValueError(f"--pod-security: {safeguards.pod_security!r} is not one of {', '.join(LEVELS)}")
    totals(safeguards)


def totals(safeguards: Safeguards) -> dict[str, str | None]:
    """The totals of a ResourceQuota that are asked for, by resource; None removes one.  Raises ValueError."""
    given = {
        "requests.cpu": ("--max-cpu", safeguards.max_cpu),
        "requests.memory": ("--max-memory", safeguards.max_memory),
        "pods": ("--max-pods", safeguards.max_pods),
    }
    found: dict[str, str | None] = {}
    for resource, (option, text) in given.items():
        if text is None:
            continue
        found[resource] = None if text == NONE else total(option, resource, text)
    return found


def total(option: str, resource: str, text: str) -> str:
    """An amount as an API server writes it, so that a second run finds nothing to change."""
    try:
        amount = parse_quantity(text)
    except QuantityError as error:
        raise ValueError(f"{option}: {error}; give an amount such as 8, or {NONE}") from None
    if amount.nano < 0 or floored(resource, amount) != amount:
        raise ValueError(f"{option}: {text} is not an amount of {resource}; give one such as 8, or {NONE}")
    return str(amount)


# -- the mount namespace


def level_for(namespace: Object | None, requested: str | None) -> str:
    """The level to enforce: what the namespace has already, unless the owner asks for a stricter one."""
    current = enforced_level(namespace)
    if current is None:
        return requested or DEFAULT_LEVEL
    if requested is None or requested == current or stricter_level(requested, current) == current:
        return labels_of(namespace)[keys.POD_SECURITY_ENFORCE] if namespace is not None else current
    return requested


# -- quota and network policy


async def apply_quota(name: str, mount: str, labels: dict[str, str], safeguards: Safeguards, physical: Cluster) -> bool:
    """Have the ResourceQuota with the totals that were given, now or earlier; returns whether there is one."""
    given = totals(safeguards)
    current = await physical.wait_for_stable(RESOURCE_QUOTAS, object_named(name, mount))
    hard = {**value_at(current, "spec", "hard", default={}), **given}
    if all(total is None for total in hard.values()):
        if current is not None:
            await physical.remove(RESOURCE_QUOTAS, current)
        return False
    metadata = {"name": name, "namespace": mount, "labels": labels}
    wanted = given if current is not None else {resource: total for resource, total in given.items() if total}
    await physical.apply(RESOURCE_QUOTAS, {"metadata": metadata, "spec": {"hard": wanted}})
    return True


async def apply_network_policy(
    name: str, mount: str, labels: dict[str, str], safeguards: Safeguards, namespace: Object | None, physical: Cluster
) -> bool:
    """Have the NetworkPolicy, unless the owner declined it, now or earlier; returns whether there is one.

    One that is there keeps its rules unless `--ingress-from` is given.
    """
    current = await physical.wait_for_stable(NETWORK_POLICIES, object_named(name, mount))
    declined = NO_NETWORK_POLICY in safeguards_of(namespace) if safeguards.network_policy is None else False
    if safeguards.network_policy is False or (declined and safeguards.ingress_from is None):
        if current is not None:
            await physical.remove(NETWORK_POLICIES, current)
        return False
    wanted: Object = {"metadata": {"name": name, "namespace": mount, "labels": labels}}
    if current is None or safeguards.ingress_from is not None:
        wanted["spec"] = network_rules(safeguards.ingress_from or ())
    await physical.apply(NETWORK_POLICIES, wanted)
    return True


def network_rules(ingress_from: tuple[str, ...]) -> Object:
    """Ingress from the same namespace and those named; egress to everywhere but the metadata services of clouds."""
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
