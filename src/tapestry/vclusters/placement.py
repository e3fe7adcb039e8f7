"""Placement of virtual clusters on host clusters, by what they request and what the host clusters offer.

What is requested of a host cluster is the sum over the virtual clusters that are placed there. Nothing is reserved.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from tapestry.apis.hostclusters import HOST_CLUSTER, HostClusterSpec
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.tenants.api_ingress import api_ingress_faults
from tapestry.tenants.host_objects import pod_account_fault
from tapestry.vclusters.errors import Violation, field_unsupported, no_host_capacity

NO_HOST = "must not be set: the virtual cluster has no host cluster"


class Demand(NamedTuple):
    """Usage of host clusters by a virtual cluster."""

    hostname: str
    """Host name of its Ingress; empty if it has none."""


def demand_of(vcluster: Object) -> Demand:
    return Demand(requested_hostname(vcluster["spec"]))


def choose_host(spec: Object, hosts: Iterable[Object], allowed: Collection[str], others: Collection[Demand]) -> str:
    """Return the host cluster for a virtual cluster, or an empty name if there are no host clusters at all.

    It is the requested one, if any, else the one with the fewest tenants. `allowed` are those that the project may use;
    empty means all. Raises ServiceError.
    """
    requested = spec.get("hostCluster") or ""
    known = {name_of(each): each for each in hosts if not allowed or name_of(each) in allowed}
    if requested:
        known = {name: each for name, each in known.items() if name == requested}
        if not known:
            raise no_host_capacity(f"there is no host cluster {requested} for this project")
    if not known:
        if allowed:
            raise no_host_capacity("the host clusters of the project do not exist")
        check_host_fields(spec, None, others)
        return ""
    problems = {name: text for name, each in known.items() if (text := problem_of(each))}
    if len(problems) == len(known):
        raise no_host_capacity("; ".join(f"{name} {text}" for name, text in problems.items()))
    faults = {name: [*field_faults(spec, each, others)] for name, each in known.items() if name not in problems}
    fitting = [known[name] for name, found in faults.items() if not found]
    if not fitting:
        raise field_unsupported(*dict.fromkeys(chain.from_iterable(faults.values())))
    return name_of(min(fitting, key=lambda each: (tenants_of(each), name_of(each))))


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
