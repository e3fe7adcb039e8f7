import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object
from tapestry.kube.patches import owned_patch
from tapestry.manager.config import BindingsConfig, SyncerSettings
from tapestry.manager.manifests import TemplateError, rendered_objects, syncer_manifests, with_server_additions
from tapestry.manager.syncers import load_templates, packaged_templates, scopes, template_values

SYSTEM = keys.SYSTEM_NAMESPACE
BINDING: Object = {
    "apiVersion": "cloud.tencent.com/v1beta1",
    "kind": "ClusterBinding",
    "metadata": {"name": "east", "uid": "uid-east"},
    "spec": {"clusterID": "east-1", "secretRef": {"name": "kc", "namespace": SYSTEM}, "mountNamespace": "leased"},
}


def rendered(config: BindingsConfig | None = None) -> dict[str, Object]:
    """Render the packaged templates for one binding, by kind and name."""
    config = config or BindingsConfig()
    given = template_values(BINDING, decode_spec(CLUSTER_BINDING, BINDING), config)
    found = syncer_manifests(load_templates(packaged_templates("syncer")), given, scopes(config))
    return {f"{each.object['kind']} {each.object['metadata']['name']}": each.object for each in found}


def filled(text: str, **given: Any) -> Object:
    (found,) = rendered_objects("a.yaml", text, given)
    return found


def test_placeholders_become_text_or_values() -> None:
    text = "{a: 'x-${name}-${count}', b: '${count}', c: '${map}', d: ['${list}', last], e: '${none}', f: ['${none}']}"
    found = filled(text, name="n", count=3, map={"k": 1}, list=[1, 2], none=None)
    assert found == {"a": "x-n-3", "b": 3, "c": {"k": 1}, "d": [1, 2, "last"], "f": []}


@given(st.text())
def test_value_never_changes_the_structure(text: str) -> None:
    template = "{metadata: {name: '${name}', labels: {id: 'x-${name}'}}, list: [\"${name}\"]}"
    labels = {"id": f"x-{text}"}
    assert filled(template, name=text) == {"metadata": {"name": text, "labels": labels}, "list": [text]}


def test_placeholder_inside_a_value_is_not_rendered() -> None:
    assert filled("{a: '${name}', b: 'x${name}'}", name="${image}") == {"a": "${image}", "b": "x${image}"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{spec: {a: [1, 'x${wrong}']}}", "a.yaml: spec.a[1]: ${wrong} is unknown; known placeholders: name"),
        ("{spec: {'${name}': 1}}", "a.yaml: spec.${name}: keys must be strings without placeholders"),
        ("{spec: {1: 1}}", "a.yaml: spec.1: keys must be strings"),
        ("[1, 2]", "a.yaml: a document must be an object, got [1, 2]"),
        ("{a: b", "a.yaml: not YAML: "),
        ("!!python/object:os.system {}", "a.yaml: not YAML: "),
    ],
)
def test_invalid_template_error_names_location_and_reason(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        filled(text, name="n")
    assert str(caught.value).startswith(message)


def new_deployment(**metadata: str) -> str:
    found = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": SYSTEM, **metadata}}
    return yaml.safe_dump(found)


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({}, "no file: 0 Deployments; one is required"),
        ({"a.yaml": new_deployment(), "b.yaml": new_deployment()}, "a.yaml, b.yaml: 2 Deployments; one is required"),
        ({"a.yaml": "{apiVersion: v1, kind: Pod}"}, "a.yaml: v1 Pod is not allowed in a syncer template"),
        ({"a.yaml": "{apiVersion: apps/v1, kind: Deployment}"}, "a.yaml: metadata.name: required for the Deployment"),
        ({"a.yaml": new_deployment(namespace="kube-system")}, "a.yaml: metadata.namespace: Deployment d must be in"),
    ],
)
def test_templates_need_one_deployment_and_watched_kinds(templates: dict[str, str], message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        syncer_manifests(templates, {}, scopes(BindingsConfig()))
    assert str(caught.value).startswith(message)


def test_packaged_syncer_runs_with_least_privileges() -> None:
    pod = rendered()["Deployment tapestry-syncer-east-1"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert [*container["command"], *container["args"]][:4] == ["tapestry", "syncer", "--binding", "east"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expression = {"key": keys.NODE_TYPE, "operator": "NotIn", "values": [keys.NODE_TYPE_VIRTUAL]}
    assert required["nodeSelectorTerms"] == [{"matchExpressions": [expression]}]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "priorityClassName" not in pod
    assert "imagePullSecrets" not in pod
    assert "volumes" not in pod


def test_syncer_may_use_its_own_lease_and_secret() -> None:
    found = rendered()
    election = ["tapestry-syncer-east"]
    rules = found["Role tapestry-syncer-east-1"]["rules"]
    assert [rule.get("resourceNames") for rule in rules] == [None, election, ["tapestry-syncer-east-1-serving"]]
    (secret,) = found["Role tapestry-syncer-east-1-kubeconfig"]["rules"]
    assert (secret["resources"], secret["resourceNames"]) == (["secrets"], ["kc"])


def test_settings_are_passed_to_the_syncer() -> None:
    resources = {"limits": {"cpu": "1000m", "memory": "0.5Gi"}}
    settings = SyncerSettings(
        image="mine:1",
        replicas=3,
        resources=resources,
        args=["--log-level=debug"],
        priority_class_name="high",
        image_pull_secrets=["registry", "mirror"],
    )
    config = BindingsConfig(namespace="home", kubeconfig_namespaces=[SYSTEM], syncer=settings)
    deployment = rendered(config)["Deployment tapestry-syncer-east-1"]
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert deployment["metadata"]["namespace"] == "home"
    assert deployment["spec"]["replicas"] == 3
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert container["image"] == "mine:1"
    assert container["args"][-1] == "--log-level=debug"
    assert container["resources"] == {"limits": {"cpu": "1", "memory": "512Mi"}}  # in canonical form
    assert {each["name"]: each.get("value") for each in container["env"]} == {
        "TAPESTRY_LEADER_ELECTION_NAMESPACE": "home",
        "TAPESTRY_KUBECONFIG_NAMESPACES": "home,tapestry-system",
        "POD_IP": None,
        "TAPESTRY_KUBELET_ADDRESS": "[$(POD_IP)]:10250",
        "TAPESTRY_KUBELET_SERVICE": "home/tapestry-syncer-east-1",
        "TAPESTRY_KUBELET_SECRET": "home/tapestry-syncer-east-1-serving",
    }


def test_reference_documents_every_template_variable() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/configuration.md").read_text()
    section = text.partition("### Templates of a syncer")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == set(template_values(BINDING, decode_spec(CLUSTER_BINDING, BINDING), BindingsConfig()))


def test_syncers_may_use_loopback_if_manager_may() -> None:
    def args(config: BindingsConfig) -> list[str]:
        deployment = rendered(config)["Deployment tapestry-syncer-east-1"]
        found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return found

    assert "--allow-loopback" not in args(BindingsConfig())
    assert "--allow-loopback" in args(BindingsConfig(allow_loopback=True))


def test_syncer_in_remote_cluster_mounts_its_credentials() -> None:
    pod = rendered(BindingsConfig(deploy_kubeconfig="f"))["Deployment tapestry-syncer-east-1"]["spec"]["template"]
    assert pod["spec"]["volumes"][0]["secret"] == {"secretName": "tapestry-syncer-east-1"}
    assert "serviceAccountName" not in pod["spec"]
    local = rendered(BindingsConfig())["Deployment tapestry-syncer-east-1"]["spec"]["template"]
    assert local["spec"]["serviceAccountName"] == "tapestry-syncer-east-1"
    assert "automountServiceAccountToken" not in local["spec"]


TREES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.sampled_from("abcd"), child, max_size=3),
    max_leaves=12,
)


def with_defaults(value: Any) -> Any:
    """Return a tree with server defaults: additional fields in every object."""
    if isinstance(value, dict):
        return {**{key: with_defaults(child) for key, child in value.items()}, "defaulted": True}
    return [with_defaults(child) for child in value] if isinstance(value, list) else value


@given(st.dictionaries(st.sampled_from("abcd"), TREES))
def test_server_defaults_cause_no_write(wanted: Object) -> None:
    stored = with_defaults(wanted)
    assert owned_patch(stored, with_server_additions(wanted, stored)) == {}


@given(st.dictionaries(st.sampled_from("abcd"), TREES), st.dictionaries(st.sampled_from("abcd"), TREES))
def test_write_produces_everything_wanted(wanted: Object, current: Object) -> None:
    assert covers(with_server_additions(wanted, current), wanted)


def covers(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(covers, found, wanted))
    return bool(found == wanted)


def test_null_in_a_list_means_absent() -> None:
    wanted = {"containers": [{"name": "c", "command": None}]}
    assert with_server_additions(wanted, {"containers": [{"name": "c"}]}) == {"containers": [{"name": "c"}]}
    assert with_server_additions(wanted, {"containers": [{"name": "c", "command": ["sh"]}]}) == {
        "containers": [{"name": "c"}]
    }
