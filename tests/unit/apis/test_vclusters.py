"""The kinds of the lifecycle service. Their definitions are golden files.

`REWRITE_GOLDEN=1 pytest ...` writes the files again.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis.operations import OPERATION, SNAPSHOT
from tapestry.apis.projects import ACCESS_KEY, PROJECT, QUOTA
from tapestry.apis.vclusters import MAX_HELM_VALUES, VCLUSTER, Phase
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.crds import Kind, crd, decode_spec
from tapestry.kube.errors import ApiError, Invalid
from tapestry.kube.objects import Object
from tapestry.kube.resources import CRDS

GOLDEN = Path(__file__).parents[2] / "golden" / "crds"
KINDS = (VCLUSTER, OPERATION, SNAPSHOT, PROJECT, QUOTA, ACCESS_KEY)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.plural)
def test_definition_equals_golden_file(kind: Kind[Any]) -> None:
    path = GOLDEN / f"{kind.resource.plural}.yaml"
    found = yaml.safe_dump(crd(kind), sort_keys=False, width=120, allow_unicode=True)
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_short_names_are_unique() -> None:
    names = [name for kind in KINDS for name in kind.short_names]
    assert len(names) == len(set(names)) == len(KINDS)


def test_empty_spec_runs_on_native_engine() -> None:
    spec = decode_spec(VCLUSTER, {"spec": {}})
    assert (spec.engine, spec.replicas, spec.suspended, spec.project) == ("native", 1, False, "")


@pytest.fixture
async def management(tmp_path: Path) -> AsyncIterator[Client]:
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(tmp_path))
    async with run_apiserver(config) as running:
        client = Client(InProcessTransport(running.request_handler, APISERVER_USER))
        for kind in KINDS:
            await client.create(CRDS, crd(kind))
        yield client


def new_vcluster(**spec: Any) -> Object:
    return {"metadata": {"name": "v", "namespace": "default"}, "spec": spec}


INVALID = [
    {"kubernetesVersion": "latest"},
    {"distro": "rke"},
    {"replicas": 0},
    {"project": "Not A Label"},
    {"resources": {"cpuRequest": "-1"}},
    {"network": {"podCidr": "10.0.0.0"}},
    {"isolationMode": "some"},
    {"operation": {"id": "op-1", "verb": "Create", "principal": "jane"}},
    {"helmValues": "a" * (MAX_HELM_VALUES + 1)},
]


@pytest.mark.parametrize("spec", INVALID, ids=lambda spec: next(iter(spec)))
async def test_server_rejects_invalid_spec(management: Client, spec: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await management.create(VCLUSTER.resource, new_vcluster(**spec))


async def test_project_and_owner_never_change(management: Client) -> None:
    created = await management.create(VCLUSTER.resource, new_vcluster(project="shop", owner="jane"))
    for field in ("project", "owner"):
        with pytest.raises(ApiError, match="may not change once it is set"):
            await management.replace(VCLUSTER.resource, {**created, "spec": {**created["spec"], field: "other"}})


async def test_access_keys_of_platform_admins_have_no_scopes(management: Client) -> None:
    spec = {"principal": "root", "secretSha256": "0" * 64, "platformAdmin": True}
    await management.create(ACCESS_KEY.resource, {"metadata": {"name": "a"}, "spec": spec})
    scoped = {**spec, "scopes": [{"project": "shop", "role": "viewer"}]}
    with pytest.raises(Invalid, match="has no scopes"):
        await management.create(ACCESS_KEY.resource, {"metadata": {"name": "b"}, "spec": scoped})


def test_phases_are_those_of_the_contract() -> None:
    names = (
        "PENDING CREATING RUNNING SUSPENDING SUSPENDED RESUMING SCALING UPDATING SNAPSHOTTING RESTORING DELETING ERROR"
    )
    assert [phase.name for phase in Phase] == names.split()
