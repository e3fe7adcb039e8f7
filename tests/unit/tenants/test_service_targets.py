"""Which ports of which twins calls to Services and pods lead to."""

from typing import Any

import pytest

from tapestry.apiserver.core.host_access import PodUnreachable
from tapestry.kube.objects import Object, object_named
from tapestry.syncer.cache_transforms import twin_view
from tapestry.syncer.views import Twin
from tapestry.tenants.service_targets import (
    Candidate,
    is_selected,
    own_addresses,
    pod_target,
    service_selector,
    service_targets,
)

HTTPS = {"name": "https", "port": 443, "targetPort": "hook"}
READY = [{"type": "Ready", "status": "True"}]


def service(**spec: Any) -> Object:
    return {**object_named("guard", "default"), "spec": {"selector": {"app": "guard"}, "ports": [HTTPS], **spec}}


def pod(name: str = "guard-1", **spec: Any) -> Object:
    ports = [{"name": "hook", "containerPort": 9443}]
    containers = [{"name": "c", "image": "i", "ports": ports}]
    metadata = {"name": name, "namespace": "default", "labels": {"app": "guard"}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def twin(metadata: Object | None = None, **status: Any) -> Twin:
    found = {"phase": "Running", "podIP": "10.1.0.7", "hostIP": "192.168.0.1", "conditions": READY, **status}
    return twin_view({"metadata": {"name": "t", **(metadata or {})}, "spec": {"containers": []}, "status": found})


def ports_of(given: Object, *candidates: Candidate, number: int = 443) -> list[tuple[int, tuple[str, ...]]]:
    return [(each.port, each.addresses) for each in service_targets(given, number, candidates)]


def test_named_port_is_that_of_the_pod() -> None:
    assert ports_of(service(), (pod(), twin())) == [(9443, ("10.1.0.7",))]


@pytest.mark.parametrize(("port", "number"), [({"port": 443}, 443), ({"port": 443, "targetPort": 8080}, 8080)])
def test_port_may_be_a_number(port: Object, number: int) -> None:
    assert ports_of(service(ports=[port]), (pod(), twin())) == [(number, ("10.1.0.7",))]


def test_port_of_a_sidecar_counts() -> None:
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always", "ports": [{"name": "hook", "containerPort": 7}]}
    main = {"name": "c", "image": "i"}
    assert ports_of(service(), (pod(initContainers=[sidecar], containers=[main]), twin())) == [(7, ("10.1.0.7",))]


@pytest.mark.parametrize(
    "candidate",
    [
        (pod(), twin(conditions=[])),
        (pod(), twin(conditions=[{"type": "Ready", "status": "False"}])),
        (pod(), twin({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        (pod(), twin(phase="Succeeded")),
        (pod(), twin(phase="Pending")),
        (pod(), twin(podIP="")),
        (pod(hostNetwork=True), twin()),
        (pod(), twin(podIP="192.168.0.1")),
        (pod(), twin(hostIPs=[{"ip": "192.168.0.1"}, {"ip": "fd00::1"}], podIPs=[{"ip": "fd00::1"}])),
        (pod(), twin(podIP="127.0.0.1")),
        (pod(), twin(podIP="169.254.169.254")),
        (pod(), twin(podIP="::1")),
        (pod(containers=[{"name": "c", "image": "i"}]), twin()),
    ],
    ids=[
        *("without-conditions", "not-ready", "deleting", "ended", "pending", "without-address", "host-network"),
        *("address-of-node", "second-address-of-node", "loopback", "metadata", "loopback-6", "without-port"),
    ],
)
def test_pod_that_must_not_be_called(candidate: Candidate) -> None:
    with pytest.raises(PodUnreachable, match='no endpoints available for service "guard"'):
        ports_of(service(), candidate)


def test_unready_pod_is_called_if_published() -> None:
    unready = pod(), twin(conditions=[])
    assert ports_of(service(publishNotReadyAddresses=True), unready) == [(9443, ("10.1.0.7",))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (service(ports=[]), "no service port 443 found"),
        (service(ports=[{"port": 443, "protocol": "UDP"}]), "is not a TCP port"),
    ],
)
def test_service_without_the_port_is_refused(given: Object, message: str) -> None:
    with pytest.raises(PodUnreachable, match=message):
        ports_of(given, (pod(), twin()))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"selector": None}, "has no selector"),
        ({"selector": {}}, "has no selector"),
        ({"type": "ExternalName", "externalName": "localhost"}, "ExternalName"),
    ],
)
def test_service_that_selects_no_pods_is_refused(spec: Object, message: str) -> None:
    with pytest.raises(PodUnreachable, match=message):
        service_selector(service(**spec))


def test_all_labels_must_match() -> None:
    assert is_selected(pod(), {"app": "guard"})
    assert not is_selected(pod(), {"app": "guard", "tier": "web"})


def test_port_of_a_pod_needs_an_own_address() -> None:
    assert pod_target(pod(), twin(conditions=[]), 80).port == 80
    for candidate in ((pod(hostNetwork=True), twin()), (pod(), twin(podIP="192.168.0.1")), (pod(), twin(podIP=""))):
        with pytest.raises(PodUnreachable, match="no address of its own"):
            pod_target(*candidate, 80)


def test_both_families_are_own_addresses() -> None:
    status = twin(podIPs=[{"ip": "10.1.0.7"}, {"ip": "fd00::7"}]).status()
    assert own_addresses(pod(), status) == ("10.1.0.7", "fd00::7")
