"""Placement of virtual clusters on host clusters, by what they request and what the host clusters offer.

What is requested of a host cluster is the sum over the virtual clusters that are placed there. Nothing is reserved.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from tapestry.apis.hostclusters import HOST_CLUSTER, HostClusterSpec
from tapestry.apis.vclusters import Phase
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.quantity import ResourceList
from tapestry.tenants.api_ingress import api_ingress_faults
from tapestry.tenants.host_objects import pod_account_fault
from tapestry.vclusters.errors import Violation, field_unsupported, no_host_capacity

NO_HOST = "must not be set: the virtual cluster has no host cluster"
AMOUNTS = {"cpu": ("cpuRequest", "cpuLimit"), "memory": ("memoryRequest", "memoryLimit")}
"""Fields of the request for a resource, and of the limit, which counts without a request."""


class Demand(NamedTuple):
    """Usage of host clusters by a virtual cluster."""

    host: str
    """Host cluster in which it is placed; empty if it is in none."""
    is_waiting: bool
    """True until it is placed."""
    requested: str
    """Host cluster that it asks for."""
    amounts: ResourceList
    hostname: str
    """Host name of its Ingress; empty if it has none."""
    order: tuple[str, str]
    """Time of its creation, and its UID."""


class Load(NamedTuple):
    """Sum over the virtual clusters of a host cluster."""

    number: int = 0
    amounts: ResourceList = ResourceList()


def demand_of(vcluster: Object) -> Demand:
    spec, status, metadata = vcluster["spec"], vcluster.get("status") or {}, vcluster["metadata"]
    host = status.get("hostCluster") or ""
    is_waiting = not host and not status.get("plane") and status.get("phase") not in (Phase.ERROR, Phase.DELETING)
    order = metadata.get("creationTimestamp") or "", metadata.get("uid") or ""
    requested = spec.get("hostCluster") or ""
    return Demand(host, is_waiting, requested, requested_amounts(spec), requested_hostname(spec), order)


def choose_host(spec: Object, hosts: Iterable[Object], allowed: Collection[str], others: Collection[Demand]) -> str:
    """Return the host cluster for a virtual cluster, or an empty name if there are no host clusters at all.

    It is the requested one, if any, else the one of whose capacity the smallest share is requested. `allowed` are those
    that the project may use; empty means all. Raises ServiceError.
    """
    every = {name_of(each): each for each in hosts}
    known = candidates(spec.get("hostCluster") or "", every, allowed)
    if not known:
        check_host_fields(spec, None, others)
        return ""
    loads, amounts = loads_of(every, others), requested_amounts(spec)
    problems = {name: problem_of(each) or capacity_problem(each, loads[name], amounts) for name, each in known.items()}
    open_hosts = [each for name, each in known.items() if not problems[name]]
    if not open_hosts:
        raise no_host_capacity("; ".join(f"{name} {text}" for name, text in problems.items()))
    faults = {name_of(each): [*field_faults(spec, each, others)] for each in open_hosts}
    fitting = {name: known[name] for name, found in faults.items() if not found}
    if not fitting:
        raise field_unsupported(*dict.fromkeys(chain.from_iterable(faults.values())))
    return least_loaded(fitting, loads)


def candidates(requested: str, hosts: Mapping[str, Object], allowed: Collection[str]) -> Mapping[str, Object]:
    """Return the host clusters that a virtual cluster may be placed in; none if there are none at all."""
    known = {name: each for name, each in hosts.items() if not allowed or name in allowed}
    if requested and requested not in known:
        raise no_host_capacity(f"there is no host cluster {requested} for this project")
    if allowed and not known:
        raise no_host_capacity("the host clusters of the project do not exist")
    return {requested: known[requested]} if requested else known


def tenants_of(host: Object) -> int:
    count: int = value_at(host, "status", "tenants", default=0)
    return count


def problem_of(host: Object) -> str:
    """Return why a host cluster takes no virtual clusters; empty if it does."""
    if is_deleting(host):
        return "is being deleted"
    if not is_condition_true(host, "Reachable"):
        return "is not reachable"
    nodes = value_at(host, "status", "openNodes", default=value_at(host, "status", "nodes"))
    return "has no open nodes" if nodes == 0 else ""


# -- capacity


def requested_amounts(spec: Object) -> ResourceList:
    """Return what a spec requests of the capacity of its host cluster."""
    given = spec.get("resources") or {}
    texts = {name: given.get(request) or given.get(limit) for name, (request, limit) in AMOUNTS.items()}
    return ResourceList.parse({name: text for name, text in texts.items() if text})


def loads_of(hosts: Mapping[str, Object], demands: Iterable[Demand]) -> dict[str, Load]:
    """Return what is requested of each host cluster.

    Virtual clusters that are not placed yet count where they ask to be, or else where they would be placed next, in the
    order of their creation.
    """
    loads = {name: Load() for name in hosts}
    for each in sorted(demands, key=lambda each: (each.is_waiting, each.order)):
        name = each.host or each.requested if each.is_waiting or each.host else ""
        if each.is_waiting and not name and hosts:
            name = least_loaded(hosts, loads)
        if name in loads:
            before = loads[name]
            loads[name] = Load(before.number + 1, before.amounts + each.amounts)
    return loads


def least_loaded(hosts: Mapping[str, Object], loads: Mapping[str, Load]) -> str:
    """Return the host cluster with the smallest share of its capacity requested, then with the fewest tenants."""

    def rank(name: str) -> tuple[Fraction, int, str]:
        number = max(loads[name].number, tenants_of(hosts[name]))
        return requested_share(capacity_of(hosts[name]), loads[name].amounts), number, name

    return min(hosts, key=rank)


def requested_share(capacity: ResourceList | None, amounts: ResourceList) -> Fraction:
    """Return the largest share of a resource that is requested."""
    shares = (
        Fraction(amounts[name].nano, max(capacity[name].nano, 1)) for name in AMOUNTS if capacity and amounts[name]
    )
    return max(shares, default=Fraction(0))


def capacity_of(host: Object) -> ResourceList | None:
    """Return what the policies of a host cluster lease; None if it is not known yet."""
    texts = value_at(host, "status", "capacity")
    return ResourceList.parse(texts) if texts is not None else None


def capacity_problem(host: Object, load: Load, amounts: ResourceList) -> str:
    """Return which resource of a host cluster does not suffice for a request; empty if all do."""
    if (capacity := capacity_of(host)) is None:
        return ""
    lacking = (
        f"{name} {each}" for name, each in amounts.items() if each and load.amounts[name] + each > capacity[name]
    )
    text = " and ".join(lacking)
    return f"has no capacity for {text}" if text else ""


def check_growth(before: Object, after: Object, host: Object, loads: Mapping[str, Load]) -> None:
    """Raise ServiceError if a changed spec requests more of its host cluster, and that has not enough."""
    old, new = requested_amounts(before), requested_amounts(after)
    grown = ResourceList({name: each for name, each in new.items() if each > old[name]})
    if text := capacity_problem(host, loads[name_of(host)], grown):
        raise no_host_capacity(f"{name_of(host)} {text}")


# -- fields that need a host cluster


def check_host_fields(spec: Object, host: Object | None, others: Iterable[Demand]) -> None:
    """Raise ServiceError if the host cluster of a virtual cluster, or the lack of one, does not allow a field."""
    if faults := [*field_faults(spec, host, others)]:
        raise field_unsupported(*faults)


def field_faults(spec: Object, host: Object | None, others: Iterable[Demand]) -> Iterator[Violation]:
    """Yield the fields of a spec that a host cluster does not allow."""
    hostname, account = requested_hostname(spec), requested_account(spec)
    if host is None:
        fields = {"spec.ingress.enabled": hostname, "spec.serviceAccount.name": account}
        yield from (Violation(field, NO_HOST) for field, value in fields.items() if value)
        return
    offer = decode_spec(HOST_CLUSTER, host)
    if account and (fault := pod_account_fault(offer, account)):
        yield Violation("spec.serviceAccount.name", fault)
    if hostname:
        yield from ingress_faults(spec["ingress"], offer, others)


def ingress_faults(ingress: Object, offer: HostClusterSpec, others: Iterable[Demand]) -> Iterator[Violation]:
    hostname = ingress["hostname"]
    faults = api_ingress_faults(offer, hostname, ingress.get("ingressClass") or "", ingress.get("annotations"))
    yield from (Violation(f"spec.ingress.{field}", message) for field, message in faults)
    if any(each.hostname == hostname for each in others):
        yield Violation("spec.ingress.hostname", "another virtual cluster has it")


def requested_hostname(spec: Object) -> str:
    """Return the host name of the Ingress that a spec requests; empty if it requests none."""
    ingress = spec.get("ingress") or {}
    return str(ingress.get("hostname") or "") if ingress.get("enabled") else ""


def requested_account(spec: Object) -> str:
    """Return the account of pods in the host cluster that a spec requests; empty for the default one."""
    name = str(value_at(spec, "serviceAccount", "name", default=""))
    return "" if name == "default" else name


def ingress_url(spec: Object) -> str:
    """Return the URL of the Ingress that a spec requests; empty if it requests none."""
    hostname = requested_hostname(spec)
    return f"https://{hostname}" if hostname else ""
