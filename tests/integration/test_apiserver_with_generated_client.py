"""Python clients that openapi-generator makes from the OpenAPI documents of our API server."""

import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import Kind, crd
from tapestry.kube.resources import Resource

from .servers import OwnServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CONNECT = """
import sys
import generated
from generated import models
url, token, ca = sys.argv[1:]
configuration = generated.Configuration(host=url, ssl_ca_cert=ca)
client = generated.ApiClient(configuration, header_name="Authorization", header_value=f"Bearer {token}")
Metadata = models.IoK8sApimachineryPkgApisMetaV1ObjectMeta
"""
USE_CORE = f"""{CONNECT}
core = generated.CoreV1Api(client)
made = core.create_core_v1_namespaced_config_map(
    "default", models.IoK8sApiCoreV1ConfigMap(metadata=Metadata(name="made"), data={{"a": "b"}}), dry_run=None
)
assert made.metadata.uid and made.data == {{"a": "b"}}
listed = core.list_core_v1_namespaced_config_map("default", field_selector="metadata.name=made")
assert [each.metadata.name for each in listed.items] == ["made"]
made.data = {{"a": "c"}}
assert core.replace_core_v1_namespaced_config_map("made", "default", made).data == {{"a": "c"}}
container = models.IoK8sApiCoreV1Container(name="c", image="nginx")
pod = models.IoK8sApiCoreV1Pod(metadata=Metadata(name="p"), spec=models.IoK8sApiCoreV1PodSpec(containers=[container]))
assert core.create_core_v1_namespaced_pod("default", pod).spec.restart_policy == "Always"
assert core.read_core_v1_namespaced_pod_status("p", "default").status.phase == "Pending"
try:
    models.IoK8sApiCoreV1Container(name="c", image_pull_policy="Sometimes")
    raise AssertionError("the enum is not checked")
except ValueError:
    pass
core.delete_core_v1_namespaced_pod("p", "default")
core.delete_core_v1_namespaced_config_map("made", "default")
try:
    core.read_core_v1_namespaced_config_map("made", "default")
    raise AssertionError("the object still exists")
except generated.ApiException as error:
    assert error.status == 404
"""
USE_CUSTOM = f"""{CONNECT}
api = generated.ExampleComV1Api(client)
made = api.create_example_com_v1_namespaced_widget(
    "default",
    models.ComExampleV1Widget(metadata=Metadata(name="w"), spec=models.ComExampleV1WidgetSpec(color="red")),
)
assert made.metadata.uid and made.spec.color == "red"
assert [each.metadata.name for each in api.list_example_com_v1_widget_for_all_namespaces().items] == ["w"]
api.delete_example_com_v1_namespaced_widget("w", "default")
"""


class WidgetSpec(ApiStruct):
    color: str = ""


WIDGETS = Kind(Resource("example.com", "v1", "Widget", "widgets"), WidgetSpec)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    with OwnServer(tmp_path_factory.mktemp("server") / "data", pod_accounts="false") as running:
        yield running


@pytest.fixture
def generator(kube_assets: Path) -> Path:
    """Folder of the programs of a virtual environment with the generator."""
    folder = kube_assets / "openapi-generator" / "bin"
    if not (folder / "openapi-generator-cli").exists():
        pytest.skip("openapi-generator is not there: make generator-assets installs it")
    if shutil.which("java") is None:
        pytest.skip("openapi-generator needs Java")
    return folder


def fetch(server: OwnServer, path: str, body: bytes | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, body, headers)
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(server.ca))) as response:
        return bytes(response.read())


@pytest.mark.parametrize(
    ("path", "script"),
    [
        ("/openapi/v3/api/v1", USE_CORE),
        ("/openapi/v3/apis/example.com/v1", USE_CUSTOM),
        ("/openapi/v2", USE_CORE),
    ],
    ids=["core", "custom", "v2"],
)
def test_generated_client_works(server: OwnServer, generator: Path, tmp_path: Path, path: str, script: str) -> None:
    if script is USE_CUSTOM:
        fetch(server, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json.dumps(crd(WIDGETS)).encode())
    document = tmp_path / "document.json"
    document.write_bytes(fetch(server, path))
    command = [
        generator / "openapi-generator-cli",
        "generate",
        "-i",
        document,
        "-g",
        "python",
        "-o",
        tmp_path / "client",
    ]
    command += ["--package-name", "generated"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    using = [generator / "python", "-c", script, server.url, server.token, server.ca]
    done = subprocess.run(using, cwd=tmp_path / "client", timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
