"""The contract of the lifecycle API: compatible with the published one, and guarded against breaking changes.

`published.txt` has the names and numbers of the contract that open-vcluster-api published.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from contract import BASELINE, breaking_changes, contract_lines, generate
from tapestry.vclusters.api import vcluster_api_pb2 as api

PUBLISHED = Path(__file__).parents[1] / "golden" / "contract" / "published.txt"
ENUM_PREFIXES = {"Phase": "PHASE", "SnapshotStatus": "SNAPSHOT_STATUS", "WatchEventType": "WATCH_EVENT_TYPE"}
WRITES = re.compile("(Create|Update|Delete|Scale|Suspend|Resume|Snapshot|Restore|Cancel)[A-Z][A-Za-z]*Request")
ADDITIONS = {
    "VCluster": "etag=13 resource_version=14 generation=15 host_cluster=17 engine=18 current_operation=20 "
    "expire_time=21 deletion_protection=22",
    "Phase": "PHASE_SUSPENDING=12",
    "Snapshot": "etag=18",
    "CreateVClusterRequest": "project=8 annotations=9 validate_only=10 etag=11 host_cluster=12 engine=13 "
    "expire_time=14 deletion_protection=15",
    "UpdateVClusterRequest": "annotations=6 validate_only=7 etag=8 request_id=9 expire_time=10 deletion_protection=11",
    "DeleteVClusterRequest": "validate_only=6 etag=7 request_id=8",
    "ScaleVClusterRequest": "validate_only=5 etag=6 request_id=7",
    "SuspendVClusterRequest": "validate_only=7 etag=8 request_id=9",
    "ResumeVClusterRequest": "validate_only=4 etag=5 request_id=6",
    "SnapshotVClusterRequest": "validate_only=8 etag=9 request_id=10",
    "RestoreVClusterRequest": "validate_only=8 etag=9 request_id=10",
    "DeleteSnapshotRequest": "validate_only=3 etag=4 request_id=5",
}


def descriptor() -> FileDescriptorProto:
    result = FileDescriptorProto()
    api.DESCRIPTOR.CopyToProto(result)
    return result


def numbers(contract: FileDescriptorProto) -> dict[str, dict[str, int]]:
    """Names and numbers of fields and enum values, by message and enum."""
    messages = {each.name: {field.name: field.number for field in each.field} for each in contract.message_type}
    return messages | {each.name: {value.name: value.number for value in each.value} for each in contract.enum_type}


def parsed(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (each.split("=") for each in text.split())}


def published() -> Iterator[tuple[str, dict[str, int]]]:
    for line in PUBLISHED.read_text().splitlines():
        kind, name, rest = line.split(maxsplit=2)
        name = name.removesuffix(":")
        if kind != "service":
            prefix = f"{ENUM_PREFIXES[name]}_" if kind == "enum" else ""
            yield name, {f"{prefix}{key}": number for key, number in parsed(rest).items()}


def test_contract_is_published_one_with_listed_additions() -> None:
    found = numbers(descriptor())
    assert {name: found[name] for name, _ in published()} == {
        name: fields | parsed(ADDITIONS.get(name, "")) for name, fields in published()
    }


def test_services_have_published_rpcs() -> None:
    services = {each.name: [method.name for method in each.method] for each in descriptor().service}
    lines = (line.split(": ") for line in PUBLISHED.read_text().splitlines() if line.startswith("service "))
    assert {name.split()[1]: rpcs.split() for name, rpcs in lines} == {
        name: services.pop(name) for name in ("VClusterService", "SnapshotService")
    }
    added = ("Operations", "Project", "Quota", "HostCluster", "AccessKey", "Audit")
    assert services.keys() == {f"{name}Service" for name in added}


def test_every_write_has_common_fields() -> None:
    writes = [each for each in descriptor().message_type if WRITES.fullmatch(each.name)]
    assert len(writes) == 20
    for each in writes:
        assert {field.name for field in each.field} >= {"request_id", "etag", "validate_only"}, each.name


def test_generated_files_are_current() -> None:
    stubs, found = generate()
    assert set(contract_lines(found)) == set(BASELINE.read_text().splitlines())
    for name, text in stubs.items():
        assert (Path(api.__file__).parent / name).read_text() == text


@pytest.mark.parametrize("change", ["number", "name", "type", "removal", "label", "rpc", "enum"])
def test_breaking_change_is_found(change: str) -> None:
    changed = descriptor()
    [vcluster] = (each for each in changed.message_type if each.name == "VCluster")
    match change:
        case "number":
            vcluster.field[0].number = 99
        case "name":
            vcluster.field[0].name = "uid"
        case "type":
            vcluster.field[0].type = vcluster.field[0].TYPE_BYTES
        case "removal":
            del vcluster.field[0]
        case "label":
            vcluster.field[0].label = vcluster.field[0].LABEL_REPEATED
        case "rpc":
            changed.service[0].method[0].server_streaming = True
        case "enum":
            changed.enum_type[0].value[1].number = 99
    released = BASELINE.read_text().splitlines()
    assert len(breaking_changes(released, contract_lines(changed))) == 1
    assert not breaking_changes(released, contract_lines(descriptor()))


def test_new_parts_break_nothing() -> None:
    changed = descriptor()
    changed.message_type[0].field.add(name="new", number=99, type=9, label=1)
    assert not breaking_changes(BASELINE.read_text().splitlines(), contract_lines(changed))
