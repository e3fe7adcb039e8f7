"""Every name of the requirement document's diagrams has a place in the code, or is marked as later."""

import importlib
import re
from pathlib import Path

import pytest

from tapestry.vclusters.lifecycle import mermaid

PAGE = (Path(__file__).parents[3] / "docs" / "concepts" / "lifecycle-service.md").read_text()
ROWS = re.findall(r"^\| ([A-Z]\S*(?: → \S+)?) \| (?:`([^`]+)`)? ?\| (.*) \|$", PAGE, re.MULTILINE)
BOXES = [
    "Portal",
    "CLI",
    "SDK_GO",
    "SDK_TS",
    "SDK_PY",
    "THIRD",
    "GRPC_GW",
    "REST_GW",
    "LB",
    "AUTH",
    "AUTHZ",
    "RATE",
    "VCS",
    "SNAP_SVC",
    "QUOTA_SVC",
    "AUDIT_SVC",
    "NOTIFY_SVC",
    "ORCH",
    "STATE",
    "SCHEDULER",
    "VALIDATOR",
    "VC_ADAPTER",
    "HELM_CLIENT",
    "K8S_CLIENT",
    "STORAGE_ADAPTER",
    "HOST_K8S",
    "ETCD_STORE",
    "S3_STORE",
    "PROMETHEUS",
]
ARROWS = [
    "Portal>LB",
    "CLI>LB",
    "SDK_GO>LB",
    "SDK_TS>LB",
    "SDK_PY>LB",
    "THIRD>LB",
    "LB>GRPC_GW",
    "LB>REST_GW",
    "GRPC_GW>AUTH",
    "REST_GW>AUTH",
    "AUTH>AUTHZ",
    "AUTHZ>RATE",
    "RATE>VCS",
    "RATE>SNAP_SVC",
    "RATE>QUOTA_SVC",
    "VCS>AUDIT_SVC",
    "SNAP_SVC>AUDIT_SVC",
    "VCS>NOTIFY_SVC",
    "VCS>ORCH",
    "SNAP_SVC>ORCH",
    "QUOTA_SVC>VALIDATOR",
    "ORCH>STATE",
    "ORCH>SCHEDULER",
    "STATE>VALIDATOR",
    "ORCH>VC_ADAPTER",
    "STATE>VC_ADAPTER",
    "VC_ADAPTER>HELM_CLIENT",
    "VC_ADAPTER>K8S_CLIENT",
    "SNAP_SVC>STORAGE_ADAPTER",
    "HELM_CLIENT>HOST_K8S",
    "K8S_CLIENT>HOST_K8S",
    "HOST_K8S>ETCD_STORE",
    "STORAGE_ADAPTER>S3_STORE",
    "VCS>PROMETHEUS",
]
VERBS = ["Create", "Get", "Update", "Delete", "Scale", "Suspend", "Resume", "Snapshot", "Restore"]
METHODS = [
    *(f"VClusterService.{verb}VCluster" for verb in VERBS),
    "VClusterService.ListVClusters",
    *(f"VClusterServiceImpl.{name}" for name in ("orchestrator", "adapter", "validator", "store")),
    *(f"VClusterServiceImpl.{name}" for name in ("CreateVCluster", "GetVCluster", "ListVClusters")),
    *(f"Orchestrator.{name}" for name in ("stateMachine", "scheduler", "Execute", "GetStatus")),
    *(
        f"VClusterAdapter.{name}"
        for name in ("helmClient", "k8sClient", "Install", "Uninstall", "Upgrade", "GetStatus")
    ),
    *(f"StateMachine.{name}" for name in ("transitions", "Transition", "ValidateTransition")),
    "VClusterServiceImpl",
]


def test_page_has_every_name_once() -> None:
    names = [name for name, _, _ in ROWS]
    assert sorted(names) == sorted([*BOXES, *(each.replace(">", " → ") for each in ARROWS), *METHODS])


@pytest.mark.parametrize(("name", "place", "notes"), ROWS, ids=[name for name, _, _ in ROWS])
def test_place_exists_or_is_marked(name: str, place: str, notes: str) -> None:
    if not place:
        assert notes.startswith(("later", "outside")), name
    else:
        assert is_found(place) is not notes.startswith("not built yet"), place


def is_found(place: str) -> bool:
    """Return whether a module exists, or a member of one."""
    parts = place.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_page_has_the_drawing_of_the_state_machine() -> None:
    assert mermaid() in PAGE
