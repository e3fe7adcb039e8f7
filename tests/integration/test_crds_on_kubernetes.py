"""Acceptance of the golden CRDs by a real kube-apiserver."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import name_of
from tapestry.kube.resources import CRDS

GOLDEN = {
    name_of(yaml.safe_load(path.read_text())): path
    for path in sorted((Path(__file__).parents[1] / "golden" / "crds").glob("*.yaml"))
}


@pytest.mark.parametrize("name", GOLDEN)
async def test_golden_crd_is_established_without_warnings(
    name: str, client: Client, kubectl: Callable[..., str]
) -> None:
    kubectl("apply", "-f", str(GOLDEN[name]))
    found = await wait_for(
        client, CRDS, name, until=lambda crd: crd is not None and is_condition_true(crd, "Established")
    )
    assert found is not None
    assert not is_condition_true(found, "NonStructuralSchema")


def test_there_are_golden_crds() -> None:
    assert GOLDEN
