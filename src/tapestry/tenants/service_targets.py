"""Ports of twins to which the calls of a plane to its Services and pods go. It is pure.

A Service leads to the ready pods that its selector selects in the plane. EndpointSlices count for nothing, because
every user of the plane can write any address into them; neither do ClusterIPs and external names. The addresses of a
twin come from the host cluster. A pod without an address of its own is in the network of its node, and is never called.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tapestry.apiserver.core.host_access import PodUnreachable
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of
from tapestry.kube.pods import containers_of
from tapestry.syncer.views import Twin

Candidate = tuple[Object, Twin]
"""A pod of the plane and its twin."""
TCP = "TCP"


@dataclass(frozen=True)
class CallTarget:
    """A port of a pod."""

    pod: Object
    port: int
    addresses: tuple[str, ...]
    """Addresses of the twin, as the host cluster reports them."""


def service_selector(service: Object) -> Mapping[str, str]:
    """Return the labels of the pods behind a Service. Raises PodUnreachable."""
    name, spec = name_of(service), service.get("spec") or {}
    if spec.get("type") == "ExternalName":
        raise PodUnreachable(f'service "{name}" has the type ExternalName: only pods of this cluster are called')
    selector: Mapping[str, str] = spec.get("selector") or {}
    if not selector:
        raise PodUnreachable(f'service "{name}" has no selector: only pods of this cluster are called, by their labels')
    return selector


def is_selected(pod: Object, selector: Mapping[str, str]) -> bool:
    labels = labels_of(pod)
    return all(labels.get(name) == value for name, value in selector.items())


def service_targets(service: Object, number: int, candidates: Iterable[Candidate]) -> list[CallTarget]:
    """Return where a port of a Service leads: at least one target. Raises PodUnreachable.

    `candidates` are the pods that the Service selects.
    """
    name, spec = name_of(service), service.get("spec") or {}
    port = next((each for each in spec.get("ports") or () if each.get("port") == number), None)
    if port is None:
        raise PodUnreachable(f'no service port {number} found for service "{name}"')
    if (port.get("protocol") or TCP) != TCP:
        raise PodUnreachable(f'port {number} of service "{name}" is not a TCP port')
    takes_unready = bool(spec.get("publishNotReadyAddresses"))
    found = list(targets(port, candidates, takes_unready=takes_unready))
    if not found:
        raise PodUnreachable(f'no endpoints available for service "{name}"')
    return found


def targets(port: Object, candidates: Iterable[Candidate], *, takes_unready: bool) -> Iterator[CallTarget]:
    for pod, twin in candidates:
        status = twin.status()
        addresses, target = own_addresses(pod, status), target_port(pod, port)
        is_ready = is_condition_true({"status": status}, "Ready") and not is_deleting(twin.object)
        if addresses and target is not None and (is_ready or takes_unready):
            yield CallTarget(pod, target, addresses)


def pod_target(pod: Object, twin: Twin, port: int) -> CallTarget:
    """Return a port of a pod. Raises PodUnreachable if the pod has no address of its own."""
    addresses = own_addresses(pod, twin.status())
    if not addresses:
        raise PodUnreachable(f'pod "{name_of(pod)}" has no address of its own now')
    return CallTarget(pod, port, addresses)


def own_addresses(pod: Object, status: Object) -> tuple[str, ...]:
    """Return the addresses of a running twin that are not also those of its node."""
    if status["phase"] != "Running" or pod["spec"].get("hostNetwork"):
        return ()
    of_node = {each["ip"] for each in status.get("hostIPs") or ()} | {status.get("hostIP")}
    of_pod = [each["ip"] for each in status.get("podIPs") or ()]
    return () if of_node.intersection(of_pod) else tuple(of_pod)


def target_port(pod: Object, port: Object) -> int | None:
    """Return the port of a pod to which a port of a Service leads; None if the pod has no port of that name."""
    wanted = port.get("targetPort") or port["port"]
    if isinstance(wanted, int):
        return wanted
    named = (
        each["containerPort"]
        for container in containers_of(pod)
        for each in container.get("ports") or ()
        if each.get("name") == wanted and (each.get("protocol") or TCP) == TCP
    )
    return next(named, None)
