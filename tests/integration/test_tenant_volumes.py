"""Volumes of a tenant from the first to the last command, with its processes: planes and a Kubernetes host cluster."""

import json
from typing import Any

import pytest

from .tenant_processes import OF_TENANTS, Setting, inventory

DATABASE = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: db
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Gi}}
"""
SCRATCH = """
apiVersion: v1
kind: Pod
metadata: {name: scratch}
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  terminationGracePeriodSeconds: 1
  containers:
  - name: scratch
    image: scratch
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec:
          accessModes: [ReadWriteOnce]
          resources: {requests: {storage: 1Gi}}
"""
RETAIN = '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}'
AVAILABLE = '{"spec": {"claimRef": null}}'
LARGER = '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}'

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
FORBIDDEN: list[tuple[dict[str, Any], str]] = [
    ({"volumeName": "foreign", "storageClassName": ""}, "host cluster chooses the volumes"),
    ({"storageClassName": "internal"}, "does not offer this class"),
    ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}, "new and empty volumes"),
    ({"selector": {"matchLabels": {"a": "b"}}}, "new and empty volumes"),
    ({"annotations": {"volume.beta.kubernetes.io/storage-class": "internal"}}, "a tenant may only set"),
    ({"annotations": {"nfs.io/storage-path": "../foreign"}}, "a tenant may only set"),
]
"""Fields that the account of a tenant may not give to a claim, and the reason."""


def claims_of(setting: Setting) -> dict[str, Any]:
    """Return the claims of the plane by name."""
    listed = json.loads(setting.in_plane("get", "persistentvolumeclaims", "-o", "json"))
    return {each["metadata"]["name"]: each for each in listed["items"]}


def host_claims(setting: Setting) -> set[str]:
    """Return the UIDs of the tenant's claims in the host cluster."""
    words = "get", "persistentvolumeclaims", "-A", "-l", OF_TENANTS, "-o", "jsonpath={.items[*].metadata.uid}"
    return set(setting.in_host(*words).split())


def check_policies(setting: Setting) -> None:
    """Try to create claims like somebody who has stolen the token of the tenant's account."""
    words = "get", "persistentvolumeclaims", "-A", "-l", OF_TENANTS, "-o", "json"
    allowed = json.loads(setting.in_host(*words))["items"][0]
    metadata, spec = allowed["metadata"], {**CLAIM, "storageClassName": "standard"}
    owned = {"name": "evil", "namespace": metadata["namespace"], "labels": metadata["labels"]}
    account = f"--as=system:serviceaccount:{metadata['namespace']}:tapestry-tenant"

    def create(annotations: Any = None, **fields: Any) -> str:
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {**owned, "annotations": annotations or {}},
            "spec": {**spec, **fields},
        }
        return setting.in_host("create", "--dry-run=server", account, "-f", "-", stdin=json.dumps(claim))

    assert "created" in create()
    for fields, message in FORBIDDEN:
        with pytest.raises(AssertionError, match=message):
            create(**fields)


def check_ephemeral_volume(setting: Setting) -> None:
    """Check that an ephemeral volume exists as long as its pod."""
    in_plane, before = setting.in_plane, host_claims(setting)
    in_plane("apply", "-f", "-", stdin=SCRATCH)
    in_plane("wait", "--for=jsonpath={.status.phase}=Running", "pod/scratch", "--timeout=60s")
    in_plane("wait", "--for=jsonpath={.status.phase}=Bound", "persistentvolumeclaim/scratch-data", "--timeout=30s")
    volume = claims_of(setting)["scratch-data"]["spec"]["volumeName"]
    assert len(host_claims(setting) - before) == 1
    in_plane("delete", "pod", "scratch", "--wait=true")
    in_plane("wait", "--for=delete", f"persistentvolume/{volume}", "--timeout=60s")
    assert host_claims(setting) == before


@pytest.mark.parametrize("setting", [("--real-kubernetes",)], indirect=True, ids=["kubernetes"])
@pytest.mark.timeout(300)
def test_stateful_set_keeps_its_volumes(setting: Setting) -> None:
    tapestry, in_plane = setting.tapestry, setting.in_plane
    kubeconfig = ("--cluster-kubeconfig", setting.host.kubeconfig, "--allow-loopback")
    tapestry("host", "add", "east", *kubeconfig, "--storage-class", "fast=standard")
    tapestry("planes", "create", "blue")
    setting.plane.write_text(tapestry("planes", "kubeconfig", "blue"))
    tapestry("tenant", "create", "blue", "--host", "east", "--quota", "requests.storage=5Gi")
    in_plane("wait", "--for=create", "storageclass/fast", "serviceaccount/default", "--timeout=30s")
    in_plane("apply", "-f", "-", stdin=DATABASE)
    in_plane("rollout", "status", "statefulset/db", "--timeout=60s")
    bound = "--for=jsonpath={.status.phase}=Bound"
    in_plane("wait", bound, "persistentvolumeclaim/data-db-0", "persistentvolumeclaim/data-db-1", "--timeout=30s")
    claims = claims_of(setting)
    volumes = json.loads(in_plane("get", "persistentvolumes", "-o", "json"))["items"]
    assert {each["spec"]["csi"]["driver"] for each in volumes} == {"host.tapestry.io"}
    first = host_claims(setting)
    assert len(first) == 2
    check_policies(setting)

    # pods that are replaced, also by another process of planes, find their data
    setting.planes.restart()
    in_plane("delete", "pod", "db-0", "--wait=true")
    in_plane("rollout", "status", "statefulset/db", "--timeout=60s")
    assert host_claims(setting) == first

    in_plane("patch", "persistentvolumeclaim", "data-db-1", "-p", LARGER)
    grown = "--for=jsonpath={.status.capacity.storage}=2Gi"
    in_plane("wait", grown, "persistentvolumeclaim/data-db-1", "--timeout=30s")

    check_ephemeral_volume(setting)

    # the volume of one claim is deleted with it, the other one is retained and used again
    retained, deleted = (claims[name]["spec"]["volumeName"] for name in ("data-db-0", "data-db-1"))
    in_plane("patch", "persistentvolume", retained, "-p", RETAIN)
    in_plane("delete", "statefulset", "db", "--wait=true")
    in_plane("wait", "--for=delete", "pod", "-l", "app=db", "--timeout=60s")
    in_plane("delete", "persistentvolumeclaim", "data-db-0", "data-db-1", "--wait=true")
    in_plane("wait", "--for=delete", f"persistentvolume/{deleted}", "--timeout=30s")
    in_plane("wait", "--for=jsonpath={.status.phase}=Released", f"persistentvolume/{retained}", "--timeout=30s")
    [twin] = host_claims(setting)
    assert twin in first
    claim = {key: claims["data-db-0"]["spec"][key] for key in ("accessModes", "resources", "storageClassName")}
    reused = {**claims["data-db-0"], "status": {}, "spec": {**claim, "volumeName": retained}}
    reused["metadata"] = {"name": "data-db-0"}
    in_plane("patch", "persistentvolume", retained, "-p", AVAILABLE)
    in_plane("apply", "-f", "-", stdin=json.dumps(reused))
    in_plane("apply", "-f", "-", stdin=DATABASE)
    in_plane("rollout", "status", "statefulset/db", "--timeout=60s")
    in_plane("wait", bound, "persistentvolumeclaim/data-db-0", "--timeout=30s")
    assert claims_of(setting)["data-db-0"]["spec"]["volumeName"] == retained
    assert twin in host_claims(setting)

    tapestry("tenant", "delete", "blue")
    assert inventory(setting.in_host) == ""
    leftover = setting.in_host("get", "persistentvolumes", "-o", "name")
    assert leftover == ""
