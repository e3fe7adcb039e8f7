"""helm on our API server: the life of a chart with a CustomResourceDefinition."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .programs import Run, programs
from .servers import OwnServer

pytestmark = pytest.mark.long

CHART = {
    "Chart.yaml": "{apiVersion: v2, name: shop, version: 0.1.0}\n",
    "values.yaml": "{image: nginx, color: red}\n",
    "crds/widgets.yaml": """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {color: {type: string}}}}
""",
    "templates/widget.yaml": """
apiVersion: example.com/v1
kind: Widget
metadata: {name: "{{ .Release.Name }}"}
spec: {color: "{{ .Values.color }}"}
""",
    "templates/deployment.yaml": """
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ .Release.Name }}", labels: {app: shop}}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: c, image: "{{ .Values.image }}"}]
""",
    "templates/service.yaml": """
apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec: {selector: {app: shop}, ports: [{port: 80}]}
""",
}


@pytest.fixture
def run(kube_assets: Path, tmp_path: Path) -> Iterator[Run]:
    """Run helm and kubectl against a new server, in a folder with the chart."""
    if not (kube_assets / "helm").exists():
        pytest.skip("helm is not there: make client-assets builds it")
    for name, text in CHART.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with OwnServer(tmp_path / "data") as server:
        yield programs(kube_assets, server.kubeconfig, tmp_path)


def test_helm_installs_upgrades_rolls_back_and_uninstalls_a_chart(run: Run) -> None:
    assert "STATUS: deployed" in run("helm", "install", "mine", "./shop", "--timeout=60s")
    assert run("kubectl", "get", "widget", "mine", "-o", "jsonpath={.spec.color}") == "red"
    assert run("kubectl", "get", "deployment", "mine", "-o", "jsonpath={..image}") == "nginx"
    run("helm", "upgrade", "mine", "./shop", "--set=color=blue,image=nginx:2")
    assert run("kubectl", "get", "widget", "mine", "-o", "jsonpath={.spec.color}") == "blue"
    assert run("kubectl", "get", "deployment", "mine", "-o", "jsonpath={..image}") == "nginx:2"
    run("helm", "rollback", "mine", "1")
    assert run("kubectl", "get", "widget", "mine", "-o", "jsonpath={.spec.color}") == "red"
    history = json.loads(run("helm", "history", "mine", "-o", "json"))
    assert [each["status"] for each in history] == ["superseded", "superseded", "deployed"]
    assert json.loads(run("helm", "list", "-o", "json"))[0]["revision"] == "3"
    run("helm", "uninstall", "mine", "--wait", "--timeout=60s")
    assert run("kubectl", "get", "widgets,deployments,secrets", "-o", "name") == ""
    assert "widgets.example.com" in run("kubectl", "get", "crds", "-o", "name")  # helm does not delete definitions
