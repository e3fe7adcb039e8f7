"""Tests of quota usage."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object
from tapestry.kube.quantity import ResourceList, parse_quantity
from tapestry.kube.quota_usage import matches_scopes, matching_quota_names, object_usage, pod_resource_totals
from tapestry.kube.times import timestamp

NOW = datetime(2030, 1, 1, tzinfo=UTC)

names = st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu"])
amounts = st.integers(0, 10**6).map(str)
resources = st.fixed_dictionaries(
    {}, optional={"requests": st.dictionaries(names, amounts), "limits": st.dictionaries(names, amounts)}
)
containers = st.fixed_dictionaries({"name": st.just("c"), "resources": resources})
init_containers = st.fixed_dictionaries(
    {"name": st.just("i"), "resources": resources}, optional={"restartPolicy": st.just("Always")}
)
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, min_size=1, max_size=3)},
    optional={"initContainers": st.lists(init_containers, max_size=3), "overhead": st.dictionaries(names, amounts)},
)
pods = st.fixed_dictionaries({"metadata": st.just({"name": "p"}), "spec": specs})
services = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]),
                "ports": st.lists(st.fixed_dictionaries({"port": st.just(1)}), max_size=3),
                "allocateLoadBalancerNodePorts": st.booleans(),
            },
        )
    }
)
claims = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"resources": st.just({"requests": {"storage": "1Gi"}})}, optional={"storageClassName": st.just("gold")}
        )
    }
)
objects = st.one_of(
    st.tuples(st.just("pods"), pods),
    st.tuples(st.just("services"), services),
    st.tuples(st.just("persistentvolumeclaims"), claims),
    st.tuples(st.sampled_from(["secrets", "deployments.apps", "widgets.example.com"]), st.just({"metadata": {}})),
)


@given(objects)
def test_usage_counts_towards_its_resource(case: tuple[str, Object]) -> None:
    resource, obj = case
    usage = object_usage(resource, obj, NOW)
    assert set(matching_quota_names(resource, usage)) == set(usage)
    assert usage[f"count/{resource}"] == parse_quantity(1)
    assert all(amount.nano >= 0 for amount in usage.values())


@given(specs, st.sampled_from(["requests", "limits"]))
def test_pod_totals_cover_every_phase(spec: Object, field: str) -> None:
    totals = pod_resource_totals(spec, field)

    def requested(container: Object) -> ResourceList:
        return ResourceList.parse(container["resources"].get(field))

    sidecars = ResourceList()
    for container in spec.get("initContainers", ()):
        phase = sidecars + requested(container)
        assert all(totals[name] >= amount for name, amount in phase.items())
        sidecars = phase if container.get("restartPolicy") else sidecars
    running = sidecars
    for container in spec["containers"]:
        running = running + requested(container)
    assert all(totals[name] >= amount for name, amount in running.items())


def test_pod_level_requests_override_containers() -> None:
    spec = {"containers": [{"resources": {"requests": {"cpu": "1"}}}], "resources": {"requests": {"cpu": "3"}}}
    assert pod_resource_totals(spec, "requests") == ResourceList.parse({"cpu": "3"})


@pytest.mark.parametrize(
    ("status", "metadata", "counts"),
    [
        ({"phase": "Running"}, {}, True),
        ({"phase": "Succeeded"}, {}, False),
        ({"phase": "Failed"}, {}, False),
        ({}, {"deletionTimestamp": timestamp(NOW), "deletionGracePeriodSeconds": 30}, True),
        ({}, {"deletionTimestamp": timestamp(NOW - timedelta(60)), "deletionGracePeriodSeconds": 30}, False),
    ],
)
def test_pod_counts_until_terminated_or_overdue(status: Object, metadata: Object, counts: bool) -> None:
    pod = {"metadata": {"name": "p", **metadata}, "spec": {"containers": []}, "status": status}
    usage = object_usage("pods", pod, NOW)
    assert ("pods" in usage) is counts
    assert "count/pods" in usage


@pytest.mark.parametrize(
    ("resource", "name", "counts"),
    [
        ("pods", "requests.example.com/gpu", True),
        ("pods", "limits.example.com/gpu", False),
        ("pods", "requests.storage", False),
        ("persistentvolumeclaims", "requests.storage", True),
        ("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", True),
        ("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/other", False),
        ("secrets", "secrets", True),
        ("deployments.apps", "deployments.apps", False),
        ("deployments.apps", "count/deployments.apps", True),
        ("services", "services.nodeports", True),
    ],
)
def test_quota_name_matches_one_resource(resource: str, name: str, counts: bool) -> None:
    assert matching_quota_names(resource, [name]) == ([name] if counts else [])


@pytest.mark.parametrize(
    ("scope", "claim", "matches"),
    [
        ({"operator": "In", "values": ["fast"]}, {"spec": {"volumeAttributesClassName": "fast"}}, True),
        ({"operator": "In", "values": ["fast"]}, {"status": {"currentVolumeAttributesClassName": "fast"}}, True),
        ({"operator": "In", "values": ["fast"]}, {"spec": {}}, False),
        ({"operator": "NotIn", "values": ["fast"]}, {"spec": {}}, True),
        ({"operator": "Exists"}, {"spec": {}}, False),
    ],
)
def test_claims_match_volume_attributes_class_scope(scope: Object, claim: Object, matches: bool) -> None:
    expressions: list[Any] = [{"scopeName": "VolumeAttributesClass", **scope}]
    quota = {"spec": {"scopeSelector": {"matchExpressions": expressions}}}
    assert matches_scopes("persistentvolumeclaims", quota, claim) is matches
    assert not matches_scopes("services", quota, {})
