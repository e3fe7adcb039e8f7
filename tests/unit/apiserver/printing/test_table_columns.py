"""Tests of table columns of all kinds, with the output of kube-apiserver as the reference."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry, published_api
from tapestry.apiserver.printing.table_columns import selector_text
from tapestry.apiserver.printing.tables import columns_for
from tapestry.kube.objects import Object

NOW = datetime(2030, 1, 1, 0, 5, tzinfo=UTC)
CREATED = "2030-01-01T00:00:00Z"
PATHS = [{"path": "/", "pathType": "Prefix"}]
METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
    {"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
    {
        "type": "External",
        "external": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "5"}},
    },
]
TARGET = {"kind": "Deployment", "name": "d"}
USERS = [{"kind": "User", "name": "u"}, {"kind": "User", "name": "w"}, {"kind": "Group", "name": "g"}]


@pytest.fixture(scope="module")
def registry() -> ResourceRegistry:
    return ResourceRegistry(published_api().resources)


def preferred_info(registry: ResourceRegistry, group: str, kind: str) -> ResourceInfo:
    versions = registry.groups()[group].values()  # in order of preference
    return next(info for infos in versions for info in infos if info.resource.kind == kind)


def hosts(*names: str) -> Object:
    return {"rules": [{"host": name, "http": {"paths": PATHS}} for name in names]}


@pytest.mark.parametrize(
    ("kind", "obj", "cells"),
    [
        (
            "networking.k8s.io/Ingress",
            {"spec": {"ingressClassName": "x", "tls": [{}], **hosts("a.com", "b.com", "c.com", "d.com")}},
            ["x", "a.com,b.com,c.com + 1 more...", "", "80, 443", "5m"],
        ),
        (
            "networking.k8s.io/Ingress",
            {"spec": {}, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "h"}]}}},
            ["<none>", "*", "1.2.3.4,h", "80", "5m"],
        ),
        (
            "networking.k8s.io/IngressClass",
            {"spec": {"controller": "a/b", "parameters": {"apiGroup": "k.io", "kind": "P", "name": "x"}}},
            ["a/b", "P.k.io/x", "5m"],
        ),
        ("networking.k8s.io/NetworkPolicy", {"spec": {"podSelector": {}}}, ["<none>", "5m"]),
        ("networking.k8s.io/NetworkPolicy", {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}, ["a=b", "5m"]),
        (
            "/Endpoints",
            {"subsets": [{"addresses": [{"ip": "1"}, {"ip": "2"}], "ports": [{"port": 80}, {"port": 81}]}]},
            ["1:80,2:80,1:81 + 1 more...", "5m"],
        ),
        ("/Endpoints", {}, ["<none>", "5m"]),
        (
            "discovery.k8s.io/EndpointSlice",
            {"addressType": "IPv4", "ports": [{"port": 80}, {}], "endpoints": [{"addresses": ["1"]}]},
            ["IPv4", "80,*", "1", "5m"],
        ),
        ("discovery.k8s.io/EndpointSlice", {"addressType": "IPv4"}, ["IPv4", "<unset>", "<unset>", "5m"]),
        (
            "autoscaling/HorizontalPodAutoscaler",
            {"spec": {"maxReplicas": 5, "minReplicas": 1, "scaleTargetRef": TARGET, "metrics": METRICS}},
            ["Deployment/d", "cpu: <unknown>/80%, memory: <unknown>/1Gi + 2 more...", "1", 5, 0, "5m"],
        ),
        (
            "autoscaling/HorizontalPodAutoscaler",
            {"spec": {"maxReplicas": 5, "scaleTargetRef": TARGET, "metrics": METRICS[2:]}},
            ["Deployment/d", "<unknown>/5, <unknown>/5 (avg)", "<unset>", 5, 0, "5m"],
        ),
        ("policy/PodDisruptionBudget", {"spec": {"minAvailable": "50%"}}, ["50%", "N/A", 0, "5m"]),
        (
            "policy/PodDisruptionBudget",
            {"spec": {"maxUnavailable": 1}, "status": {"disruptionsAllowed": 2}},
            ["N/A", "1", 2, "5m"],
        ),
        (
            "/ResourceQuota",
            {"status": {"hard": {"pods": "5", "limits.memory": "1Gi", "cpu": "1"}, "used": {"pods": "2"}}},
            ["cpu: 0/1, pods: 2/5", "limits.memory: 0/1Gi", "5m"],
        ),
        ("/LimitRange", {}, [CREATED]),
        (
            "apps/ControllerRevision",
            {
                "revision": 3,
                "metadata": {
                    "ownerReferences": [
                        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "controller": True}
                    ]
                },
            },
            ["statefulset.apps/s", 3, "5m"],
        ),
        (
            "rbac.authorization.k8s.io/RoleBinding",
            {
                "roleRef": {"kind": "Role", "name": "r"},
                "subjects": [*USERS, {"kind": "ServiceAccount", "name": "s", "namespace": "x"}],
            },
            ["Role/r", "5m", "u, w", "g", "x/s"],
        ),
        (
            "certificates.k8s.io/CertificateSigningRequest",
            {
                "spec": {"signerName": "a.b/c", "username": "u", "expirationSeconds": 3600},
                "status": {"conditions": [{"type": "Approved"}], "certificate": "x"},
            },
            ["5m", "a.b/c", "u", "60m", "Approved,Issued"],
        ),
        ("storage.k8s.io/CSIDriver", {"spec": {}}, [True, False, False, "<unset>", False, "<none>", "5m"]),
        (
            "batch/CronJob",
            {
                "spec": {
                    "schedule": "* * * * *",
                    "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}},
                }
            },
            ["* * * * *", "<none>", "<unset>", 0, "<none>", "5m", "c", "i", "<none>"],
        ),
    ],
)
def test_kind_is_printed_as_by_kubernetes(registry: ResourceRegistry, kind: str, obj: Object, cells: list[Any]) -> None:
    info = preferred_info(registry, *kind.split("/"))
    complete = {**obj, "metadata": {"name": "o", "creationTimestamp": CREATED, **obj.get("metadata", {})}}
    assert [each.cell(complete, NOW) for each in columns_for(info)] == ["o", *cells]


def test_event_columns_show_source_and_count(registry: ResourceRegistry) -> None:
    info = preferred_info(registry, "", "Event")
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"},
        "source": {"component": "me", "host": "here"},
        "count": 4,
        "firstTimestamp": "2029-12-31T00:05:00Z",
        "lastTimestamp": CREATED,
        "type": "Normal",
        "reason": "Because",
        "message": "it was\n",
    }
    printed = [each.cell(event, NOW) for each in columns_for(info)]
    expected = ["5m", "Normal", "Because", "pod/p", "spec.containers{c}", "me, here", "it was"]
    assert printed == [*expected, "24h", 4, "e"]


RUNS, ENDED = {"running": {}}, {"terminated": {"exitCode": 0, "reason": "Completed"}}
WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}


def status(name: str, state: Object, *, ready: bool = False, restarts: int = 0, **more: Any) -> Object:
    return {"name": name, "state": state, "ready": ready, "restartCount": restarts, **more}


@pytest.mark.parametrize(
    ("spec", "pod_status", "cells"),
    [
        ({}, {"phase": "Pending"}, ["0/1", "Pending", "0"]),
        ({}, {"phase": "Failed", "reason": "Evicted"}, ["0/1", "Evicted", "0"]),
        ({}, {"containerStatuses": [status("c", RUNS, ready=True)], "phase": "Running"}, ["1/1", "Running", "0"]),
        ({}, {"containerStatuses": [status("c", WAITS, restarts=3)]}, ["0/1", "CrashLoopBackOff", "3"]),
        (
            {"containers": [{"name": "c"}, {"name": "d"}]},
            {"containerStatuses": [status("c", RUNS, ready=True), status("d", ENDED)]},
            ["1/2", "NotReady", "0"],
        ),
        (
            {"initContainers": [{"name": "a"}, {"name": "b"}]},
            {"initContainerStatuses": [status("a", ENDED, restarts=1), status("b", RUNS, restarts=2)]},
            ["0/1", "Init:1/2", "3"],
        ),
        (
            {"initContainers": [{"name": "a"}]},
            {"initContainerStatuses": [status("a", {"terminated": {"exitCode": 2}})]},
            ["0/1", "Init:ExitCode:2", "0"],
        ),
        (
            {"initContainers": [{"name": "s", "restartPolicy": "Always"}]},
            {
                "phase": "Running",
                "initContainerStatuses": [
                    status(
                        *("s", RUNS),
                        ready=True,
                        restarts=2,
                        started=True,
                        lastState={"terminated": {"exitCode": 1, "finishedAt": CREATED}},
                    )
                ],
                "containerStatuses": [status("c", RUNS, ready=True, restarts=1)],
            },
            ["2/2", "Running", "3 (5m ago)"],
        ),
    ],
)
def test_pod_columns_summarize_container_states(
    registry: ResourceRegistry, spec: Object, pod_status: Object, cells: list[str]
) -> None:
    info = preferred_info(registry, "", "Pod")
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}, "status": pod_status}
    assert [each.cell(pod, NOW) for each in columns_for(info)][1:4] == cells


def test_selector_is_printed_as_query() -> None:
    spec = {
        "matchLabels": {"b": "1"},
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]},
            {"key": "c", "operator": "DoesNotExist"},
            {"key": "d", "operator": "NotIn", "values": ["z"]},
        ],
    }
    assert selector_text(spec) == "a in (x,y),b=1,!c,d notin (z)"
    assert selector_text(None) == "<none>"
