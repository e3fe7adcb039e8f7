"""Patches that write changed copies back to their sources."""

import pytest

from tapestry.kube.objects import Object
from tapestry.syncer.translate.sync_back import MAX_BYTES, SyncBackRejected, sync_back_patch


def config_map(**fields: object) -> Object:
    return {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "team"}, **fields}


def secret(**data: object) -> Object:
    return {"kind": "Secret", "metadata": {"name": "s", "namespace": "team"}, "data": data}


def test_only_values_of_existing_keys_are_written_back() -> None:
    source = config_map(data={"a": "1", "b": "2", "c": "3"})
    copy = config_map(data={"a": "1", "b": "changed", "new": "x"})
    assert sync_back_patch(source, copy) == {"data": {"b": "changed"}}


def test_binary_data_is_written_back() -> None:
    source = config_map(data={"a": "1"}, binaryData={"b": "AAAA"})
    copy = config_map(data={"a": "1"}, binaryData={"b": "AAEC"})
    assert sync_back_patch(source, copy) == {"binaryData": {"b": "AAEC"}}


@pytest.mark.parametrize("copy", [config_map(), config_map(data=None), config_map(data=["a"]), config_map(data={})])
def test_copy_without_keys_changes_nothing(copy: Object) -> None:
    assert sync_back_patch(config_map(data={"a": "1"}), copy) == {}


@pytest.mark.parametrize("value", [7, None, {"deep": {}}, ["x"]])
def test_non_string_values_are_rejected(value: object) -> None:
    with pytest.raises(SyncBackRejected, match="not a string"):
        sync_back_patch(config_map(data={"a": "1"}), config_map(data={"a": value}))


def test_secret_values_must_be_base64_and_are_not_quoted() -> None:
    with pytest.raises(SyncBackRejected, match="not base64") as raised:
        sync_back_patch(secret(password="AAAA"), secret(password="plain text!"))
    assert "plain" not in str(raised.value)


def test_data_over_a_mebibyte_is_rejected() -> None:
    source = config_map(data={"a": "1", "b": "2"})
    half = "x" * (MAX_BYTES // 2)
    assert sync_back_patch(source, config_map(data={"a": half, "b": "2"}))
    with pytest.raises(SyncBackRejected, match="1048576 bytes"):
        sync_back_patch(source, config_map(data={"a": half, "b": half + "x"}))
