"""The Helm charts as rendered: golden files, the objects of `tapestry manifests`, and values that are rejected."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from tapestry.apis import keys
from tapestry.apis.mount_labels import safeguards_of
from tapestry.apis.policies import POLICIES
from tapestry.kube.objects import Object, annotations_of
from tapestry.manager.config import BindingsConfig
from tapestry.manager.installation import installation_objects
from tapestry.process.config import load_config

from ..conftest import CHARTS
from .helm import IMAGE, ROOT, by_key, rendered, run

HASH = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("chart", "values"), [("tapestry", IMAGE), ("tapestry-worker", f"--set=virtualCluster={HASH},binding=east")]
)
def test_chart_passes_lint(helm: Path, chart: str, values: str) -> None:
    assert "0 chart(s) failed" in run(helm, "lint", "--strict", f"charts/{chart}", values)


CASES = sorted(CHARTS.glob("*/*.input.yaml"))
FILES = ROOT / "charts" / "tapestry" / "files"


@pytest.mark.parametrize("values", CASES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_render_equals_the_golden_file(helm: Path, values: Path) -> None:
    """REWRITE_GOLDEN=1 writes the golden files.  They omit CustomResourceDefinitions, which other tests compare."""
    found = rendered(helm, values.parent.name, f"--values={values}")
    listed = [with_file_names(found[key]) for key in sorted(found) if key[0] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(listed, sort_keys=False, width=1 << 20)
    golden = values.with_name(values.name.replace(".input.", ".output."))
    if os.environ.get("REWRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def with_file_names(obj: Object) -> Object:
    """Return the object with texts that are whole files of the chart replaced by the names of these files."""
    if obj["kind"] != "ConfigMap":
        return obj
    names = {path.read_text().strip(): str(path.relative_to(FILES)) for path in FILES.rglob("*.*")}
    return {**obj, "data": {key: names.get(text.strip(), text) for key, text in obj["data"].items()}}


def test_chart_installs_what_manifests_prints(helm: Path) -> None:
    found = rendered(helm, "tapestry", IMAGE, "--set=kubeconfigNamespaces={tenant}")
    expected = by_key(
        installation_objects(image="registry.example/tapestry:v1", kubeconfig_namespaces=["tenant"], replicas=3)
    )
    del expected["Namespace", "", keys.SYSTEM_NAMESPACE]  # helm creates it
    assert {(kind, name) for kind, _, name in found.keys() - expected.keys()} == {
        ("ConfigMap", "tapestry-manager"),
        ("ConfigMap", "tapestry-syncer-templates"),
        ("Lease", "tapestry-manager"),  # otherwise the manager creates it
        ("Job", "tapestry-uninstall-check"),
    }
    for key, wanted in expected.items():
        if key[0] in ("Deployment", "CustomResourceDefinition"):
            found[key]["metadata"].pop("annotations", None)  # helm's
        if key[0] != "Deployment":
            assert found[key] == wanted, key
    manager, wanted = (each["Deployment", keys.SYSTEM_NAMESPACE, "tapestry-manager"] for each in (found, expected))
    container, plain = (each["spec"]["template"]["spec"]["containers"][0] for each in (manager, wanted))
    assert {**container, "args": None, "env": None, "volumeMounts": None} == {
        **plain,
        "args": None,
        "env": None,
        "volumeMounts": None,
    }
    assert container["args"][: len(plain["args"])] == plain["args"]
    assert [each for each in container["env"] if each in plain["env"]] == plain["env"]


@pytest.mark.parametrize(
    ("option", "kind", "name"),
    [
        ("metrics.serviceMonitor", "ServiceMonitor", "tapestry"),
        ("metrics.prometheusRule", "PrometheusRule", "tapestry"),
        ("metrics.dashboard", "ConfigMap", "tapestry-dashboard"),
        ("verticalPodAutoscaler", "VerticalPodAutoscaler", "tapestry-manager"),
    ],
)
def test_optional_objects_are_off_by_default(helm: Path, option: str, kind: str, name: str) -> None:
    found = rendered(helm, "tapestry", IMAGE, f"--set={option}.enabled=true")
    assert found.keys() - rendered(helm, "tapestry", IMAGE).keys() == {(kind, keys.SYSTEM_NAMESPACE, name)}


@pytest.mark.parametrize(("option", "policy"), [([], "keep"), (["--set=crds.keep=false"], None)])
def test_custom_resource_definitions_stay_by_default(helm: Path, option: list[str], policy: str | None) -> None:
    found = rendered(helm, "tapestry", IMAGE, *option)
    definitions = [each for (kind, _, _), each in found.items() if kind == "CustomResourceDefinition"]
    assert len(definitions) == 2
    assert {annotations_of(each).get("helm.sh/resource-policy") for each in definitions} == {policy}


@pytest.mark.parametrize(
    ("chart", "options", "message"),
    [
        ("tapestry", [], "image.repository is required"),
        ("tapestry", [IMAGE, "--set=profile=huge"], "profile"),
        ("tapestry", [IMAGE, "--set=manager.replicas=0"], "replicas"),
        (
            "tapestry",
            [IMAGE, "--set=managementCluster.kubeconfigSecret=m"],
            "managementCluster.virtualServer is required",
        ),
        ("tapestry", [IMAGE, "--set=managers.replicas=1"], "managers"),
        ("tapestry-worker", [], "virtualCluster"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=East"], "binding"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,lease.percent=101"], "percent"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,lease.limits[0].resource=cpu"], "limits"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,lease.limits[0].resource=x.y/gpu"], "limits"),
        (
            "tapestry-worker",
            [f"--set=virtualCluster={HASH},binding=e,reclaimNow=true,createNamespace=false,mountNamespace=m"],
            "kubectl annotate namespace m tapestry.io/reclaim=now --overwrite",
        ),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,mountNamespace=default"], "joiner"),
        ("tapestry-worker", [f"--set=virtualCluster={HASH},binding=e,allowedVolumes.drivers={{a'b}}"], "drivers"),
    ],
)
def test_invalid_values_are_rejected_by_name(helm: Path, chart: str, options: list[str], message: str) -> None:
    assert message in run(helm, "template", "t", f"charts/{chart}", "--kube-version=1.34", *options, check=False)


@pytest.mark.parametrize(("version", "count"), [("1.29.15", 0), ("1.30.0-gke.100", 1), ("1.34", 1)])
def test_admission_policies_depend_on_the_version(helm: Path, version: str, count: int) -> None:
    """`helm template` knows no kinds of the cluster, so the version decides."""
    for chart, values, names in (
        ("tapestry", IMAGE, 2),
        ("tapestry-worker", f"--set=virtualCluster={HASH},binding=east", 1),
    ):
        found = rendered(helm, chart, values, version=version)
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            assert len([each for each in found if each[0] == kind]) == names * count, chart


def test_worker_chart_refuses_volumes_without_admission_policies(helm: Path) -> None:
    volumes = f"--set=virtualCluster={HASH},binding=east,allowedVolumes.drivers={{disk.example}}"
    command = ("template", "t", "charts/tapestry-worker", volumes, "--kube-version=1.29.0")
    assert "no ValidatingAdmissionPolicy" in run(helm, *command, check=False)


@pytest.mark.parametrize(("version", "is_weaker"), [("1.29.15", True), ("1.34.0", False)])
def test_notes_say_what_is_weaker(helm: Path, tmp_path: Path, version: str, is_weaker: bool) -> None:
    chart = shutil.copytree(ROOT / "charts/tapestry-worker", tmp_path / "tapestry-worker")
    notes = '{{ include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}'
    (chart / "templates/notes.yaml").write_text(f"notes: |\n{notes}\n")
    show = (f"--kube-version={version}", "--show-only=templates/notes.yaml")
    text = run(helm, "template", "t", str(chart), f"--set=virtualCluster={HASH},binding=east", *show)
    assert ("no ValidatingAdmissionPolicy" in text) == is_weaker


def test_syncers_use_the_pull_secrets_of_the_release(helm: Path, tmp_path: Path) -> None:
    found = rendered(helm, "tapestry", IMAGE, "--set=imagePullSecrets[0].name=registry")
    file = tmp_path / "manager.yaml"
    file.write_text(found["ConfigMap", keys.SYSTEM_NAMESPACE, "tapestry-manager"]["data"]["manager.yaml"])
    config = load_config(BindingsConfig, file=file, environ={}, flags={})
    assert config.syncer.image_pull_secrets == ["registry"]


def test_volume_policies_contain_drivers_and_handles(helm: Path) -> None:
    volumes = "allowedVolumes.drivers={disk.example},allowedVolumes.volumeHandles={shared/*}"
    found = rendered(helm, "tapestry-worker", f"--set=virtualCluster={HASH},binding=east,{volumes}")
    text = json.dumps([each for (kind, _, _), each in found.items() if kind == "ValidatingAdmissionPolicy"])
    assert r"driver in [\"disk.example\"]" in text
    assert r"matches(\"(?s)^shared/.*$\")" in text


def test_quota_is_divided_among_nodes(helm: Path) -> None:
    values = f"--set=virtualCluster={HASH},binding=east,quota.cpu=16,quota.pods=5"
    found = rendered(helm, "tapestry-worker", values)
    [policy] = [each for (kind, _, _), each in found.items() if kind == POLICIES.kind]
    assert policy["spec"]["totalLimits"] == [
        {"resource": "cpu", "quantity": "16"},
        {"resource": "pods", "quantity": "5"},
    ]


@pytest.mark.parametrize("allowed", [True, False])
def test_owner_decides_about_exec(helm: Path, allowed: bool) -> None:
    values = f"--set=virtualCluster={HASH},binding=east,exec={str(allowed).lower()}"
    found = rendered(helm, "tapestry-worker", values)
    rules = [rule for (kind, _, _), each in found.items() if kind == "Role" for rule in each["rules"]]
    assert ("pods/exec" in {name for rule in rules for name in rule["resources"]}) == allowed
    (namespace,) = [each for (kind, _, _), each in found.items() if kind == "Namespace"]
    assert ("no-exec" in safeguards_of(namespace)) != allowed
