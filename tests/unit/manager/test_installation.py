import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tapestry.cli.main import main
from tapestry.kube.objects import Object, key_of
from tapestry.manager.config import BindingsConfig
from tapestry.manager.installation import installation_objects
from tapestry.process.config import ConfigError, load_config


def by_name(objects: list[Object]) -> dict[str, Object]:
    return {f"{obj['kind']} {key_of(obj)}": obj for obj in objects}


def test_manifests_of_a_development_version_need_an_image() -> None:
    done = CliRunner().invoke(main, ["manifests"])
    assert (done.exit_code, "pass --image" in done.output) == (2, True)


def test_manifests_are_printed_in_apply_order() -> None:
    done = CliRunner().invoke(main, ["manifests", "--image", "mine:1"])
    assert done.exit_code == 0, done.output
    found = by_name(list(yaml.safe_load_all(done.output)))
    assert list(found) == [
        "Namespace tapestry-system",
        "Namespace tapestry-host-ports",
        "CustomResourceDefinition clusterbindings.cloud.tencent.com",
        "CustomResourceDefinition resourceleasingpolicies.cloud.tencent.com",
        "ValidatingAdmissionPolicy tapestry-syncers",
        "ValidatingAdmissionPolicyBinding tapestry-syncers",
        "ValidatingAdmissionPolicy tapestry-manager",
        "ValidatingAdmissionPolicyBinding tapestry-manager",
        "ServiceAccount tapestry-system/tapestry-manager",
        "ClusterRole tapestry-syncer",
        "ClusterRole tapestry-metrics-reader",
        "ClusterRole tapestry-manager",
        "ClusterRoleBinding tapestry-manager",
        "Role tapestry-system/tapestry-manager",
        "RoleBinding tapestry-system/tapestry-manager",
        "Role tapestry-host-ports/tapestry-syncer",
        "RoleBinding tapestry-host-ports/tapestry-syncer",
        "Role kube-node-lease/tapestry-syncer",
        "RoleBinding kube-node-lease/tapestry-syncer",
        "Role kube-system/tapestry-syncer",
        "RoleBinding kube-system/tapestry-syncer",
        "Deployment tapestry-system/tapestry-manager",
        "NetworkPolicy tapestry-system/tapestry-manager",
        "NetworkPolicy tapestry-system/tapestry-syncer",
        "PodDisruptionBudget tapestry-system/tapestry-manager",
        "Service tapestry-system/tapestry-manager-metrics",
        "Service tapestry-system/tapestry-syncer-metrics",
    ]
    container = found["Deployment tapestry-system/tapestry-manager"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "mine:1"
    assert {"name": "TAPESTRY_SYNCER_IMAGE", "value": "mine:1"} in container["env"]


def test_admission_policies_can_be_omitted() -> None:
    done = CliRunner().invoke(main, ["manifests", "--image", "mine:1", "--no-admission-policies"])
    assert done.exit_code == 0, done.output
    assert not [each for each in by_name(list(yaml.safe_load_all(done.output))) if "AdmissionPolicy" in each]


def test_manager_issues_tokens_on_request_only() -> None:
    for is_requested in (False, True):
        found = by_name(list(installation_objects(issues_tokens=is_requested)))
        roles = [name for name, obj in found.items() for rule in obj.get("rules", ()) if is_about_tokens(rule)]
        assert roles == (["Role tapestry-system/tapestry-manager-tokens"] if is_requested else [])


def is_about_tokens(rule: Object) -> bool:
    return "serviceaccounts/token" in rule.get("resources", ())


def test_management_cluster_gets_an_account_with_one_role() -> None:
    done = CliRunner().invoke(main, ["manifests", "--management", "-n", "home"])
    assert done.exit_code == 0, done.output
    found = by_name(list(yaml.safe_load_all(done.output)))
    names = ["ServiceAccount home/tapestry-manager", "Role home/tapestry-manager", "RoleBinding home/tapestry-manager"]
    assert list(found) == ["Namespace home", *names]
    resources = [name for rule in found["Role home/tapestry-manager"]["rules"] for name in rule["resources"]]
    assert resources == ["deployments", "poddisruptionbudgets", "verticalpodautoscalers", "secrets"]


def test_only_the_manager_may_write_roles() -> None:
    found = by_name(list(installation_objects(kubeconfig_namespaces=["tenant"])))
    rules = [(name, rule) for name, obj in found.items() for rule in obj.get("rules", [])]
    assert rules
    assert not [
        name for name, rule in rules if "*" in (*rule["verbs"], *rule.get("resources", []), *rule.get("apiGroups", []))
    ]
    binding = [rule for _, rule in rules if {"bind", "escalate", "impersonate"} & set(rule["verbs"])]
    assert [rule["resources"] for rule in binding] == [["clusterroles"], ["roles"]]
    assert {name for name, rule in rules if rule in binding} == {"ClusterRole tapestry-manager"}


def test_only_syncers_may_create_host_port_pods() -> None:
    found = by_name(list(installation_objects(namespace="home")))
    creators = {
        name: obj
        for name, obj in found.items()
        for rule in obj.get("rules", [])
        if rule.get("resources") == ["pods"] and "create" in rule["verbs"]
    }
    assert list(creators) == ["Role tapestry-host-ports/tapestry-syncer"]
    assert [each["name"] for each in found["RoleBinding tapestry-host-ports/tapestry-syncer"]["subjects"]] == [
        "system:serviceaccounts:home"
    ]


def test_secret_permissions_are_limited_to_kubeconfig_namespaces() -> None:
    found = by_name(list(installation_objects(namespace="home", kubeconfig_namespaces=["tenant"])))
    allowed = {
        name: set(rule["verbs"])
        for name, obj in found.items()
        for rule in obj.get("rules", [])
        if "secrets" in rule.get("resources", [])
    }
    assert set(allowed) == {"Role home/tapestry-manager", "Role tenant/tapestry-manager"}
    kinds = {
        resource for rule in found["Role tenant/tapestry-manager"]["rules"] for resource in rule.get("resources", [])
    }
    assert kinds == {"secrets"}
    subject = {"kind": "ServiceAccount", "name": "tapestry-manager", "namespace": "home"}
    assert found["RoleBinding tenant/tapestry-manager"]["subjects"] == [subject]


def test_installed_arguments_are_valid_manager_settings() -> None:
    found = by_name(list(installation_objects(image="mine:1", namespace="home", kubeconfig_namespaces=["a", "b"])))
    container = found["Deployment home/tapestry-manager"]["spec"]["template"]["spec"]["containers"][0]
    environ = {each["name"]: each["value"] for each in container["env"]}
    config = load_config(BindingsConfig, file=None, environ=environ, flags={})
    assert config.secret_namespaces == {"home", "a", "b"}
    assert config.syncer.image == "mine:1"
    assert config.leader_election.enabled


def test_invalid_manager_settings_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for text, message in {
        "syncer: {resources: {limits: {cpu: lots}}}": "syncer: resources.limits.cpu: 'lots'",
        "syncer: {imagee: x}": "syncer.imagee: unknown; did you mean syncer.image?",
    }.items():
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(BindingsConfig, file=file, environ={}, flags={})
        assert message in str(caught.value)
    done = CliRunner().invoke(main, ["manager", "--config", str(file)], env=dict(os.environ))
    assert done.exit_code == 1
    assert "did you mean syncer.image?" in done.output
