"""Plane: defaults and ids.  Its definition is a golden file.

`REWRITE_GOLDEN=1 pytest ...` writes the file again.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tapestry.apis.planes import PLANE, PlaneSpec, plane_id
from tapestry.kube.crds import InvalidSpec, crd, decode_spec
from tapestry.kube.names import dns_label_error
from tapestry.kube.objects import Object

GOLDEN = Path(__file__).parents[2] / "golden" / "crds" / "planes.yaml"


def new_plane(uid: str = "u", **spec: Any) -> Object:
    return {"metadata": {"name": "p", "uid": uid}, "spec": spec}


def test_definition_equals_golden_file() -> None:
    found = yaml.safe_dump(crd(PLANE), sort_keys=False, width=120, allow_unicode=True)
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_default_plane_is_open_and_never_sleeps() -> None:
    spec = decode_spec(PLANE, new_plane())
    assert spec == PlaneSpec()
    assert (spec.backend, spec.state, spec.idle_seconds, spec.controllers) == ("file", "Open", 0, ("*",))


@pytest.mark.parametrize("spec", [{"state": "Deleted"}, {"backend": "s3"}, {"limits": {"requestsInFlight": 0}}])
def test_invalid_spec_is_rejected(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        decode_spec(PLANE, new_plane(**spec))


def test_id_is_a_dns_label_of_eighty_bits() -> None:
    id = plane_id(new_plane("1"))
    assert dns_label_error(id) is None
    assert len(id) == 16  # five bits per character
    assert id == plane_id(new_plane("1", state="Suspended"))
    assert id != plane_id(new_plane("2"))
