"""Pods as in a busy cluster: 5 kB of JSON each with managed fields, identical in every run.

Values that differ between real pods differ here (names, UIDs, addresses, container IDs, times). Values that thousands
of pods share are shared (images, nodes, field names), because they determine the cost of a cache.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

COUNT = 5_000
PAGE = 500
NODES = 250
NAMESPACES = 40
APPS = 120
LIST_VERSION = "9000000"
START = datetime(2026, 1, 5, 8, tzinfo=UTC)


def pod(number: int) -> dict[str, Any]:
    """Return the pod with that number as a list item, without apiVersion and kind."""
    app = number % APPS
    name = f"app-{app:03d}"
    replicas = _digest("replicas", app)[:10]
    created = START + timedelta(seconds=37 * number)
    started = _time(created + timedelta(seconds=4))
    return {
        "metadata": {
            "name": f"{name}-{replicas}-{_digest('pod', number)[:5]}",
            "generateName": f"{name}-{replicas}-",
            "namespace": f"team-{number % NAMESPACES:02d}",
            "uid": _uid("pod", number),
            "resourceVersion": str(1_000_000 + number),
            "generation": 1,
            "creationTimestamp": _time(created),
            "labels": {
                "app.kubernetes.io/name": name,
                "app.kubernetes.io/instance": f"{name}-production",
                "pod-template-hash": replicas,
            },
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "8080",
                "checksum/config": _digest("config", app),
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{name}-{replicas}",
                    "uid": _uid("replicas", app),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                _managed("kube-controller-manager", _time(created), CONTROLLER_FIELDS, ""),
                _managed("kubelet", started, KUBELET_FIELDS, "status"),
            ],
        },
        "spec": _spec(number, name, app),
        "status": _status(number, name, app, _time(created), started),
    }


def pages(count: int = COUNT, page: int = PAGE) -> Iterator[bytes]:
    """Yield the responses of a server to a paged list of `count` pods."""
    for begin in range(0, count, page):
        end = min(begin + page, count)
        metadata = {"resourceVersion": LIST_VERSION, "continue": str(end) if end < count else ""}
        items = [pod(number) for number in range(begin, end)]
        yield _compact({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})


def events(count: int = COUNT) -> Iterator[bytes]:
    """Yield the lines of a watch that begins with `count` pods: one event each, then the bookmark after the list."""
    for number in range(count):
        yield _compact({"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1", **pod(number)}}) + b"\n"
    metadata = {"resourceVersion": LIST_VERSION, "annotations": {"k8s.io/initial-events-end": "true"}}
    bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": None}, "status": {}}
    yield _compact({"type": "BOOKMARK", "object": bookmark}) + b"\n"


def _spec(number: int, name: str, app: int) -> dict[str, Any]:
    token = f"kube-api-access-{_digest('token', number)[:5]}"
    return {
        "volumes": [
            {
                "name": token,
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        {
                            "downwardAPI": {
                                "items": [
                                    {
                                        "path": "namespace",
                                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                                    }
                                ]
                            }
                        },
                    ],
                    "defaultMode": 420,
                },
            },
        ],
        "containers": [
            {
                "name": name,
                "image": _image(app),
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "env": [{"name": "LOG_LEVEL", "value": "info"}],
                "resources": {
                    "limits": {"cpu": "1", "memory": "1Gi"},
                    "requests": {"cpu": f"{100 + 50 * (app % 5)}m", "memory": "256Mi"},
                },
                "volumeMounts": [
                    {
                        "name": token,
                        "readOnly": True,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    }
                ],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": name,
        "serviceAccount": name,
        "nodeName": f"node-{number % NODES:04d}",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{condition}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for condition in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _status(number: int, name: str, app: int, created: str, started: str) -> dict[str, Any]:
    node = number % NODES
    host = f"10.0.{node // 250}.{node % 250 + 1}"
    address = f"10.{1 + number // 65_000}.{number // 250 % 250}.{number % 250 + 1}"
    times = {"Initialized": created, "PodScheduled": created}
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": times.get(kind, started)}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": created,
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": started}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": _image(app),
                "imageID": f"images.example.com/shop/app-{app:03d}@sha256:{_digest('image', app)}",
                "containerID": f"containerd://{_digest('container', number)}",
                "started": True,
            }
        ],
        "qosClass": "Burstable",
    }


def _owned(*names: str) -> dict[str, Any]:
    return {f"f:{name}": {} for name in names}


CONTROLLER_FIELDS = {
    "f:metadata": {
        "f:annotations": {".": {}, **_owned("prometheus.io/scrape", "prometheus.io/port", "checksum/config")},
        "f:generateName": {},
        "f:labels": {
            ".": {},
            **_owned(
                "app.kubernetes.io/name",
                "app.kubernetes.io/instance",
                "pod-template-hash",
            ),
        },
        "f:ownerReferences": {".": {}, 'k:{"uid":"6f1cfd9e-1b86-4f4f-8f26-1d0e8c9d1f4b"}': {}},
    },
    "f:spec": {
        "f:containers": {
            'k:{"name":"app"}': {
                ".": {},
                "f:env": {
                    ".": {},
                    'k:{"name":"LOG_LEVEL"}': {".": {}, **_owned("name", "value")},
                },
                **_owned("image", "imagePullPolicy", "name"),
                "f:ports": {
                    ".": {},
                    'k:{"containerPort":8080,"protocol":"TCP"}': {
                        ".": {},
                        **_owned("containerPort", "name", "protocol"),
                    },
                },
                "f:resources": {
                    ".": {},
                    "f:limits": {".": {}, **_owned("cpu", "memory")},
                    "f:requests": {".": {}, **_owned("cpu", "memory")},
                },
                **_owned("terminationMessagePath", "terminationMessagePolicy"),
            }
        },
        **_owned(
            "dnsPolicy",
            "enableServiceLinks",
            "restartPolicy",
            "schedulerName",
            "securityContext",
            "serviceAccount",
            "serviceAccountName",
            "terminationGracePeriodSeconds",
        ),
    },
}
KUBELET_FIELDS = {
    "f:status": {
        "f:conditions": {
            f'k:{{"type":"{kind}"}}': {".": {}, **_owned("lastProbeTime", "lastTransitionTime", "status", "type")}
            for kind in ("PodReadyToStartContainers", "ContainersReady", "Initialized", "Ready")
        },
        **_owned("containerStatuses", "hostIP", "hostIPs", "phase", "podIP"),
        "f:podIPs": {".": {}, 'k:{"ip":"10.1.7.23"}': {".": {}, "f:ip": {}}},
        "f:startTime": {},
    }
}


def _managed(manager: str, time: str, fields: dict[str, Any], subresource: str) -> dict[str, Any]:
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": subresource} if subresource else entry


def _image(app: int) -> str:
    return f"images.example.com/shop/app-{app:03d}:1.{app % 7}.{app % 11}"


def _digest(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _uid(*what: object) -> str:
    text = _digest("uid", *what)
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:32]}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
