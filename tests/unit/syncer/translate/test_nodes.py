"""Nodes of a hostile physical cluster: the sanitized node is small and valid."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.pod_requests import PodAllocation
from tapestry.kube.quantity import ResourceList
from tapestry.syncer.bottomup.csinodes import csi_node
from tapestry.syncer.bottomup.hostports import MAX_PORTS, taken_ports
from tapestry.syncer.cache_transforms import host_ports_of
from tapestry.syncer.translate.nodes import MAX_LABELS, sanitized_amounts, sanitized_drivers, sanitized_node
from tapestry.syncer.views import ForeignPod

HONEST: Object = {
    "metadata": {
        "name": "n1.example",
        "uid": "u-1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"topology.kubernetes.io/zone": "a", "gpu": ""},
        "annotations": {"tapestry.io/reclaim": "now"},
    },
    "spec": {"unschedulable": True, "taints": [{"key": "gpu", "value": "x", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"},
        "allocatable": {"cpu": "3900m", "memory": "15Gi", "nvidia.com/gpu": "2", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "well"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
        "nodeInfo": {"kubeletVersion": "v1.34.3", "architecture": "amd64"},
    },
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_valid_node_is_unchanged() -> None:
    assert sanitized_node(HONEST) == HONEST


@given(st.dictionaries(st.sampled_from(["labels", "annotations"]), VALUES), VALUES, VALUES)
def test_sanitizing_any_node_is_idempotent(metadata: Object, spec: Any, status: Any) -> None:
    node = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", **metadata}, "spec": spec, "status": status}
    found = sanitized_node(node)
    assert sanitized_node(found) == found


@given(st.dictionaries(st.sampled_from(sorted(HONEST["status"])), VALUES))
def test_any_status_is_sanitized(status: Object) -> None:
    found = sanitized_node({**HONEST, "status": status})
    assert sanitized_node(found) == found


def test_huge_node_becomes_small() -> None:
    many = {f"key-{number}": "x" * 63 for number in range(50_000)}
    text = "x" * 3_000_000
    status = {
        "allocatable": {f"r{number}": "1" for number in range(50_000)},
        "conditions": [{"type": f"T{number}", "status": "True", "message": text} for number in range(100)],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}] * 50_000,
        "nodeInfo": {"kernelVersion": text, "unknown": text, **dict.fromkeys(("osImage", "machineID"), text)},
        "images": [{"names": [text]}],
    }
    taints = [{"key": f"t{number}", "effect": "NoSchedule"} for number in range(50_000)]
    metadata = {**HONEST["metadata"], "labels": many, "annotations": {**many, "tapestry.io/x": text}}
    found = sanitized_node({"metadata": metadata, "spec": {"taints": taints}, "status": status})
    assert len(found["metadata"]["labels"]) == MAX_LABELS
    assert len(found["status"]["conditions"]) == 32
    assert len(msgspec.json.encode(found)) < 256 * 1024


@pytest.mark.parametrize(
    "labels", [{"a b": "x"}, {"": "x"}, {"x": "a b"}, {"x": 5}, {"/x": ""}, {"a/b/c": ""}, {"x": "y" * 64}, ["x"], "x"]
)
def test_invalid_labels_are_dropped(labels: Any) -> None:
    found = sanitized_node({**HONEST, "metadata": {**HONEST["metadata"], "labels": labels}})
    assert "labels" not in found["metadata"]


@pytest.mark.parametrize(
    "amount", ["1e999999", "-1", "1e99", "9223372036854775808", "NaN", "", "x" * 1000, {}, None, True]
)
def test_invalid_amounts_are_dropped(amount: Any) -> None:
    assert sanitized_amounts({"memory": amount, "pods": "3"}) == {"pods": "3"}


def test_cpus_stay_within_scheduler_limit() -> None:
    assert sanitized_amounts({"cpu": "9e15"}) == {}
    assert sanitized_amounts({"cpu": 4, "a b": "1", "x" * 400: "1"}) == {"cpu": "4"}


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "::1", "fe80::1", "::ffff:10.0.0.1"),
        *("kubernetes.default.svc", "10.0.0.1/8", "", 5, None),
    ],
)
def test_misleading_addresses_are_dropped(address: Any) -> None:
    status = {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": "api"}]}
    assert sanitized_node({**HONEST, "status": status})["status"] == {}


@pytest.mark.parametrize(
    "taint",
    [{"key": "a b", "effect": "NoSchedule"}, {"key": "a", "effect": "Kill"}, {"effect": "NoSchedule"}, {"key": 5}, "x"],
)
def test_invalid_taints_are_dropped(taint: Any) -> None:
    assert sanitized_node({**HONEST, "spec": {"taints": [taint]}})["spec"] == {}


@pytest.mark.parametrize("field", ["name", "uid", "resourceVersion"])
def test_huge_identity_is_rejected(field: str) -> None:
    with pytest.raises(ValueError, match="invalid name, UID or resource version"):
        sanitized_node({**HONEST, "metadata": {**HONEST["metadata"], field: "x" * 1000}})


def test_conditions_are_valid_and_limited() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "message": "a\x1b[2J"},
        {"type": "Ready", "status": "False"},
        {"type": "Other", "status": "perhaps"},
        {"type": "a b", "status": "True"},
        {"type": "When", "status": "False", "lastTransitionTime": "yesterday", "more": 1},
        5,
    ]
    found = sanitized_node({**HONEST, "status": {"conditions": conditions}})["status"]["conditions"]
    assert found == [
        {"type": "Ready", "status": "True", "message": "a[2J"},
        {"type": "When", "status": "False"},
    ]


def test_drivers_are_limited_and_valid() -> None:
    good = {"name": "disk.example", "nodeID": "n", "topologyKeys": ["zone"], "allocatable": {"count": 8}}
    assert sanitized_drivers([good]) == [good]
    bad = [
        {**good, "name": "a b"},
        {**good, "name": "x" * 64},
        {**good, "nodeID": ""},
        {**good, "nodeID": "x" * 193},
        {"name": "disk.example"},
        "x",
    ]
    assert sanitized_drivers(bad) == []
    odd = {**good, "topologyKeys": ["a b", "zone", "zone", 5], "allocatable": {"count": -1}, "more": "x" * 9999}
    assert sanitized_drivers([odd]) == [{"name": "disk.example", "nodeID": "n", "topologyKeys": ["zone"]}]
    many = [{**good, "name": f"d{number}"} for number in range(10_000)]
    node = {"metadata": {"name": "v", "uid": "u"}}
    assert len(csi_node({"metadata": {"name": "n"}, "spec": {"drivers": many}}, node, "b")["spec"]["drivers"]) == 64


@pytest.mark.parametrize(
    "port",
    [
        {"hostPort": 70000},
        {"hostPort": "80"},
        {"hostPort": -1},
        {"hostPort": 80, "protocol": "X"},
        {"hostPort": 80, "hostIP": "here"},
        {"hostPort": True},
    ],
)
def test_invalid_host_port_is_dropped(port: Object) -> None:
    ports = [port, {"hostPort": 443, "hostIP": "127.0.0.1"}]
    assert host_ports_of({"containers": [{"ports": ports}]}) == (("127.0.0.1", 443, "TCP"),)


def test_number_of_host_ports_is_limited() -> None:
    ports = tuple(("0.0.0.0", number, "TCP") for number in range(1, 60_000))
    pod = ForeignPod(
        uid="u",
        version="1",
        node="n",
        allocation=PodAllocation(ResourceList(), datetime(2026, 1, 1, tzinfo=UTC)),
        host_ports=ports,
    )
    assert len(taken_ports([pod])) == MAX_PORTS
