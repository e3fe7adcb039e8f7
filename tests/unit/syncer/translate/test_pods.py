"""Twins of virtual pods: golden cases for each rule of translation, and later changes.

A case under `tests/golden/pods` is `NAME.input.yaml` (a pod and, where they matter, the binding's spec and name, the
physical node, its taints and aliases of Services) and `NAME.output.yaml` (the whole twin). `REWRITE_GOLDEN=1 pytest
...` rewrites the outputs, which must be reviewed; integration tests send them to a real kube-apiserver.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apis.excluded_pods import is_excluded
from tapestry.kube.names import DNS_LABEL
from tapestry.kube.objects import Object, name_of
from tapestry.syncer.translate.metadata import is_applied
from tapestry.syncer.translate.pods import (
    HostAlias,
    TwinSettings,
    desired_twin,
    ephemeral_patch,
    host_and_port,
    hostname_of,
    new_twin,
    resize_patch,
    twin_patch,
    untranslatable_fields,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "pods"
CASES = sorted(path.name.removesuffix(".input.yaml") for path in GOLDEN.glob("*.input.yaml"))


def new_binding(name: str = "east", **spec: Any) -> Binding:
    needed = {
        "clusterID": "east",
        "mountNamespace": "leased",
        "secretRef": {"name": "s", "namespace": "tapestry-system"},
    }
    return binding_of({"metadata": {"name": name, "uid": "5e1f"}, "spec": {**needed, **spec}}, "a-virtual-cluster")


def test_settings_of_other_objects_decide_labels_and_priority() -> None:
    plain = new_twin(new_pod(), new_binding(), "n1")
    labelled = new_twin(new_pod(), new_binding(), "n1", settings=TwinSettings({"decided": "true"}, "high"))
    assert (plain["spec"]["priorityClassName"], labelled["spec"]["priorityClassName"]) == ("tapestry-leased", "high")
    patch = twin_patch(plain, desired_twin(new_pod(), new_binding(), "n1", settings=TwinSettings({"decided": "true"})))
    assert patch is not None
    assert patch["metadata"]["labels"]["decided"] == "true"
    removal = twin_patch(labelled, desired_twin(new_pod(), new_binding(), "n1"))
    assert removal is not None
    assert removal["metadata"]["labels"]["decided"] is None


@pytest.mark.parametrize("name", CASES)
def test_twin_matches_the_golden_file(name: str) -> None:
    given: Object = yaml.safe_load((GOLDEN / f"{name}.input.yaml").read_text())
    binding = new_binding(given.get("bindingName", "east"), **given.get("binding", {}))
    aliases = [HostAlias(each["ip"], tuple(each["names"])) for each in given.get("aliases", ())]
    found = new_twin(given["pod"], binding, given.get("node", "n1"), aliases, given.get("taints", ()))
    output = GOLDEN / f"{name}.output.yaml"
    if os.environ.get("REWRITE_GOLDEN"):
        output.write_text(yaml.safe_dump(found, sort_keys=False, width=120))
    assert found == yaml.safe_load(output.read_text())


def test_every_golden_output_has_an_input() -> None:
    outputs = sorted(path.name.removesuffix(".output.yaml") for path in GOLDEN.glob("*.output.yaml"))
    assert outputs == CASES


# -- names


def new_pod(*, metadata: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": "web", "namespace": "team-a", "uid": "0c1d", **(metadata or {})},
        "spec": {"nodeName": "vnode-east-n1", "containers": [new_container()], **spec},
    }


def new_container(name: str = "app", image: str = "app:1", **fields: Any) -> Object:
    return {"name": name, "image": image, **fields}


def twin_of(pod: Object, **binding: Any) -> Object:
    return desired_twin(pod, new_binding(**binding), "n1")


def test_names_differ_between_namespaces_bindings_and_clusters() -> None:
    spec = {"clusterID": "east", "mountNamespace": "leased", "secretRef": {"name": "s", "namespace": "t"}}
    bindings = [
        binding_of({"metadata": {"name": "east", "uid": uid}, "spec": spec}, cluster)
        for uid in ("u1", "u2")
        for cluster in ("c1", "c2")
    ]
    pods = [new_pod(metadata={"namespace": namespace}) for namespace in ("team-a", "team-b")]
    assert len({name_of(desired_twin(pod, binding, "n1")) for pod in pods for binding in bindings}) == 8


@pytest.mark.parametrize(
    ("name", "hostname"),
    [
        ("web", "web"),
        ("a.b.c", "a-b-c"),
        ("x" * 63, "x" * 63),
        ("x" * 64, "x" * 63),
        ("x" * 62 + ".y", "x" * 62),
        ("x" * 61 + "--y", "x" * 61),
        ("x" * 60 + "---y", "x" * 60),
    ],
)
def test_hostname_is_truncated_pod_name(name: str, hostname: str) -> None:
    assert hostname_of(name) == hostname


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,3}", fullmatch=True))
def test_every_pod_name_gives_a_hostname(name: str) -> None:
    hostname = hostname_of(name)
    assert len(hostname) <= 63
    assert DNS_LABEL.fullmatch(hostname)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("api.example.com:6443", "api.example.com", "6443"),
        ("api.example.com", "api.example.com", "443"),
        ("api.example.com:", "api.example.com", "443"),
        ("10.0.0.7:6443", "10.0.0.7", "6443"),
        ("[2001:db8::7]:6443", "2001:db8::7", "6443"),
        ("[2001:db8::7]", "2001:db8::7", "443"),
        ("2001:db8::7", "2001:db8::7", "443"),
    ],
)
def test_endpoint_is_split_into_host_and_port(endpoint: str, host: str, port: str) -> None:
    assert host_and_port(endpoint) == (host, port)


# -- excluded pods


@pytest.mark.parametrize(
    ("namespace", "alone"),
    [
        ("team-a", False),
        ("default", False),
        ("kube-system", True),
        ("kube-node-lease", True),
        ("tapestry-system", True),
    ],
)
def test_system_pods_are_excluded(namespace: str, alone: bool) -> None:
    assert is_excluded(new_pod(metadata={"namespace": namespace}), new_binding()) is alone


def test_daemon_set_pods_run_on_request() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    plain = new_pod(metadata={"ownerReferences": [owner]})
    requested = new_pod(metadata={"ownerReferences": [owner], "annotations": {keys.RUNNING_DAEMONSET: "true"}})
    assert is_excluded(plain, new_binding())
    assert not is_excluded(requested, new_binding())
    assert not is_excluded(plain, new_binding(runningDaemonsetByDefault=True))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"volumes": [{"name": "v", "glusterfs": {"endpoints": "e", "path": "p"}}]}, "spec.volumes[0].glusterfs"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"name": "n"}}]}}]},
            "spec.volumes[0].projected.sources[0].clusterTrustBundle",
        ),
        (
            {"initContainers": [new_container(env=[{"name": "A", "valueFrom": {"vaultRef": {"name": "n"}}}])]},
            "spec.initContainers[0].env[0].valueFrom.vaultRef",
        ),
        (
            {"containers": [new_container(envFrom=[{"vaultRef": {"name": "n"}}])]},
            "spec.containers[0].envFrom[0].vaultRef",
        ),
        (
            {"ephemeralContainers": [new_container(envFrom=[{"vaultRef": {"name": "n"}}])]},
            "spec.ephemeralContainers[0].envFrom[0].vaultRef",
        ),
    ],
)
def test_unknown_reference_is_rejected(spec: Object, path: str) -> None:
    [error] = untranslatable_fields(new_pod(**spec), new_binding())
    assert error.startswith(f"{path}: ")


@pytest.mark.parametrize("name", CASES)
def test_every_golden_pod_can_be_translated(name: str) -> None:
    given: Object = yaml.safe_load((GOLDEN / f"{name}.input.yaml").read_text())
    assert untranslatable_fields(given["pod"], new_binding(**given.get("binding", {}))) == []


# -- changes


def test_unchanged_twin_is_not_patched() -> None:
    created = twin_of(new_pod())
    assert twin_patch(created, twin_of(new_pod())) is None


def test_webhook_changes_remain() -> None:
    created = twin_of(new_pod(metadata={"labels": {"app": "web"}}))
    changed = {
        **created,
        "metadata": {**created["metadata"], "labels": {**created["metadata"]["labels"], "app": "theirs", "mesh": "on"}},
        "spec": {**created["spec"], "containers": [new_container(image="mirror/app:1"), new_container("mesh")]},
    }
    assert twin_patch(changed, twin_of(new_pod(metadata={"labels": {"app": "web"}}))) is None


def test_metadata_follows_and_additions_stay() -> None:
    before = twin_of(new_pod(metadata={"labels": {"app": "web", "old": "1"}, "annotations": {"a": "1", "b": "1"}}))
    before["metadata"]["labels"]["theirs"] = "1"
    after = twin_of(new_pod(metadata={"labels": {"app": "shop"}, "annotations": {"a": "2"}}))
    patch = twin_patch(before, after)
    assert patch is not None
    labels, annotations = patch["metadata"]["labels"], patch["metadata"]["annotations"]
    assert (labels["app"], labels["old"]) == ("shop", None)
    assert "theirs" not in labels
    assert (annotations["a"], annotations["b"]) == ("2", None)
    assert labels[keys.CLUSTER_BINDING_UID] == "5e1f"
    assert annotations[keys.EXPECTED_METADATA] == after["metadata"]["annotations"][keys.EXPECTED_METADATA]


def test_pod_that_left_its_workload_loses_workload_labels() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w" * 70, "uid": "u", "controller": True}
    before, after = twin_of(new_pod(metadata={"ownerReferences": [owner]})), twin_of(new_pod())
    patch = twin_patch(before, after)
    assert patch is not None
    assert patch["metadata"]["labels"][keys.WORKLOAD_NAME] is None
    assert patch["metadata"]["labels"][keys.WORKLOAD_TYPE] is None
    assert patch["metadata"]["annotations"][keys.WORKLOAD_NAME] is None


def test_image_is_patched_by_container_name() -> None:
    before = twin_of(new_pod(containers=[new_container(), new_container("b")], initContainers=[new_container("i")]))
    after = twin_of(
        new_pod(containers=[new_container(image="app:2"), new_container("b")], initContainers=[new_container("i")])
    )
    patch = twin_patch(before, after)
    assert patch is not None
    assert patch["spec"] == {
        "initContainers": [{"name": "i", "image": "app:1"}],
        "containers": [{"name": "app", "image": "app:2"}, {"name": "b", "image": "app:1"}],
    }


def test_later_deadline_is_set() -> None:
    patch = twin_patch(twin_of(new_pod()), twin_of(new_pod(activeDeadlineSeconds=60)))
    assert patch is not None
    assert patch["spec"]["activeDeadlineSeconds"] == 60


def test_later_taint_changes_no_twin() -> None:
    pod = new_pod(tolerations=[{"operator": "Exists"}])
    created = new_twin(pod, new_binding(), "n1", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    assert created["spec"]["tolerations"] == [{"key": "gpu", "operator": "Equal", "effect": "NoSchedule"}]
    later = new_twin(pod, new_binding(), "n1", taints=[{"key": "drain", "effect": "NoExecute"}])
    assert twin_patch(created, later) is None
    assert twin_patch(created, twin_of(pod)) is None


def test_later_toleration_does_not_reach_twin() -> None:
    created = new_twin(new_pod(), new_binding(), "n1", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    assert twin_patch(created, twin_of(new_pod(tolerations=[{"operator": "Exists"}]))) is None


@pytest.mark.parametrize("key", ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"])
def test_held_tolerations_do_not_change_twin(key: str) -> None:
    held = {"key": key, "operator": "Exists", "effect": "NoExecute"}
    before = twin_of(new_pod(tolerations=[{**held, "tolerationSeconds": 300}]))
    assert is_applied(before, twin_of(new_pod(tolerations=[held])))


@pytest.mark.parametrize(
    "spec",
    [
        {"terminationGracePeriodSeconds": 5},
        {"nodeSelector": {"a": "b"}},
        {"hostAliases": [{"ip": "192.0.2.1", "hostnames": ["h"]}]},
        {"priorityClassName": "other"},
        {"readinessGates": [{"conditionType": "example.com/g"}]},
    ],
)
def test_immutable_fields_are_not_patched(spec: Object) -> None:
    assert is_applied(twin_of(new_pod()), twin_of(new_pod(**spec)))


def test_new_api_address_only_affects_new_pods() -> None:
    assert is_applied(twin_of(new_pod()), twin_of(new_pod(), virtualEndpoints={"api": "10.0.0.8:6443"}))


# -- resizing


def test_zero_requests_are_written_once() -> None:
    created = new_twin(new_pod(), new_binding(), "n1")
    assert created["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "0", "memory": "0"}}
    created["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "250m", "memory": "0"}}  # added by the owner
    assert (twin_patch(created, twin_of(new_pod())), resize_patch(created, twin_of(new_pod()))) == (None, None)
    more = {"requests": {"cpu": "1"}}
    assert resize_patch(created, twin_with_resources(more)) == {
        "spec": {"containers": [{"name": "app", "resources": more}]}
    }


def test_pod_level_resources_leave_containers_unchanged() -> None:
    created = new_twin(new_pod(resources={"limits": {"cpu": "1"}}), new_binding(), "n1")
    assert created["spec"]["containers"][0]["resources"] == {"requests": {"memory": "0"}}


def resized(before: Object, after: Object) -> Object | None:
    """Return the resize patch for a change of the container's resources."""
    return resize_patch(twin_of(new_pod(containers=[new_container(resources=before)])), twin_with_resources(after))


def twin_with_resources(resources: Object) -> Object:
    return twin_of(new_pod(containers=[new_container(resources=resources)]))


def test_container_is_resized() -> None:
    more = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2"}}
    assert not is_applied(twin_with_resources({"requests": {"cpu": "1"}}), twin_with_resources(more))
    patch = resized({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}, more)
    assert patch == {"spec": {"containers": [{"name": "app", "resources": more}]}}


def test_sidecar_is_resized_too() -> None:
    before, after = (
        twin_of(
            new_pod(initContainers=[new_container("s", restartPolicy="Always", resources={"requests": {"cpu": cpu}})])
        )
        for cpu in ("1", "2")
    )
    assert resize_patch(before, after) == {
        "spec": {"initContainers": [{"name": "s", "resources": {"requests": {"cpu": "2"}}}]}
    }


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "4", "memory": "1Gi"}}, {"requests": {"cpu": "1"}}),
        ({"requests": {"cpu": "1", "memory": "1Gi"}}, {"requests": {"cpu": "1"}}),
        ({"requests": {"cpu": "1"}}, {}),
    ],
    ids=["the same", "limits by default", "requests by default", "nothing asked"],
)
def test_owners_defaults_cause_no_resize(have: Object, want: Object) -> None:
    assert resized(have, want) is None


def test_missing_container_is_not_resized() -> None:
    before = twin_of(new_pod(containers=[new_container("other")]))
    assert resize_patch(before, twin_with_resources({"requests": {"cpu": "1"}})) is None


# -- ephemeral containers


def test_ephemeral_containers_are_only_added() -> None:
    debug = {"name": "d1", "image": "busybox", "targetContainerName": "app"}
    more = {"name": "d2", "image": "busybox", "envFrom": [{"secretRef": {"name": "db"}}]}
    pod = new_pod(ephemeralContainers=[debug, more])
    created = twin_of(pod)
    assert "ephemeralContainers" not in created["spec"]
    existing = {**created, "spec": {**created["spec"], "ephemeralContainers": [debug]}}
    [renamed] = (ephemeral_patch(existing, pod, new_binding()) or {})["spec"]["ephemeralContainers"]
    assert renamed["name"] == "d2"
    assert renamed["envFrom"][0]["secretRef"]["name"].startswith("db-")
    assert ephemeral_patch({**created, "spec": {"ephemeralContainers": [debug, more]}}, pod, new_binding()) is None
    assert ephemeral_patch(existing, new_pod(), new_binding()) is None


def test_ephemeral_containers_get_virtual_api_address() -> None:
    pod = new_pod(
        ephemeralContainers=[
            {
                "name": "d",
                "image": "i",
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }
        ]
    )
    binding = new_binding(virtualEndpoints={"api": "10.0.0.7:6443"})
    [container] = (ephemeral_patch(desired_twin(pod, binding, "n1"), pod, binding) or {})["spec"]["ephemeralContainers"]
    assert container["env"][0]["name"] == "KUBERNETES_SERVICE_HOST"
    assert (
        container["env"][-1]["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{keys.VIRTUAL_POD_NAME}']"
    )
