"""Safety rule 9: whatever an untrusted status contains, the sanitized one is harmless, small and valid.

`test_twins_on_kubernetes.py` shows that a real API server accepts it and returns it unchanged.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object, digest_of
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.translate.pod_status import (
    CONTAINER_LISTS,
    TWIN_CONDITIONS,
    sanitized_pod_status,
)
from tapestry.syncer.translate.sanitize import MAX_TEXT_BYTES, is_routable, truncate_text

from .hostile_statuses import ADDRESSES, FAMILIES, HONEST, MOMENTS, STATUSES, TIME

STATUS_FIELDS = {
    *("phase", "reason", "message", "startTime", "conditions", "hostIP", "hostIPs", "podIP", "podIPs"),
    *CONTAINER_LISTS,
}
LARGEST = 256 * 1024
CONTAINER_FIELDS = {
    *("name", "ready", "started", "restartCount", "image", "imageID", "containerID", "state", "lastState"),
    *("allocatedResources", "resources"),
}


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in texts(each)]


def check(found: Object) -> None:
    """Check the bounds of a sanitized status."""
    assert found.keys() <= STATUS_FIELDS
    assert found["phase"] in {"Pending", "Running", "Succeeded", "Failed"}
    assert len(msgspec.json.encode(found)) <= LARGEST
    assert all(len(text.encode()) <= MAX_TEXT_BYTES for text in texts(found))
    assert not any(ord(char) < 32 and char not in "\t\n" for text in texts(found) for char in text)
    types = [each["type"] for each in found["conditions"]]
    assert len(types) == len(set(types)) <= 32
    assert set(types) <= TWIN_CONDITIONS | {"DisruptionTarget"}
    assert not {found.get("podIP"), found.get("hostIP")} & {*ADDRESSES.values()}
    for field in ("podIPs", "hostIPs"):
        assert len(found.get(field, ())) <= 2
        assert not {each["ip"] for each in found.get(field, ())} & {*ADDRESSES.values()}
    for field in CONTAINER_LISTS:
        for container in found.get(field, ()):
            assert container.keys() <= CONTAINER_FIELDS
            assert 0 <= container["restartCount"] < 2**31


def new_pod(status: object) -> Object:
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "n"}, "status": status}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_safety_rule_9_any_status_is_bounded(family: Callable[[], Any]) -> None:
    for name, status in family():
        found = sanitized_pod_status(status)
        try:
            check(found)
            assert sanitized_pod_status(found) == found
            assert virtual_pod(new_pod(found)).status_digest == digest_of(found)
        except AssertionError as error:
            error.add_note(f"the status is: {name}")
            raise


def test_there_are_many_hostile_statuses(record_property: Callable[[str, object], None]) -> None:
    record_property(
        "figure", f"hostile statuses: {len(STATUSES)} from {len(FAMILIES)} families, all shown within bounds"
    )
    assert len(STATUSES) == sum(len(list(family())) for family in FAMILIES) >= 100


def test_valid_status_is_unchanged() -> None:
    container = {field: value for field, value in HONEST["containerStatuses"][0].items() if field in CONTAINER_FIELDS}
    assert sanitized_pod_status(HONEST) == {
        **{field: HONEST[field] for field in STATUS_FIELDS & HONEST.keys() if HONEST[field]},
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "ContainersNotReady",
                "message": "not yet",
                "lastTransitionTime": TIME,
            }
        ],
        "containerStatuses": [container],
    }


@pytest.mark.parametrize(
    "status", [None, {}, [], "Running", 7, {"phase": None, "conditions": None, "containerStatuses": None}]
)
def test_missing_status_is_pending(status: Any) -> None:
    assert sanitized_pod_status(status) == {"phase": "Pending", "conditions": []}


@pytest.mark.parametrize("name", ADDRESSES)
def test_safety_rule_9_misleading_addresses_are_dropped(name: str) -> None:
    assert not is_routable(ADDRESSES[name])


@pytest.mark.parametrize(
    "ip", ["10.0.0.1", "192.168.1.1", "100.64.0.1", "240.0.0.1", "8.8.8.8", "2001:db8::1", "fd00::1"]
)
def test_pod_addresses_remain(ip: str) -> None:
    assert is_routable(ip)
    assert sanitized_pod_status({"podIP": ip})["podIPs"] == [{"ip": ip}]


def test_one_address_per_family_remains() -> None:
    ips = [{"ip": ip} for ip in ("10.0.0.1", "10.0.0.2", "2001:DB8::1", "2001:db8::2")]
    found = sanitized_pod_status({"podIP": "127.0.0.1", "podIPs": ips})
    assert (found["podIP"], found["podIPs"]) == ("10.0.0.1", [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}])


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("of another zone", "2026-01-01T00:00:00Z"),
        ("with nanoseconds", "2026-01-01T00:00:00Z"),
        ("the last of all", "9999-12-31T23:59:59Z"),
        ("none of Go's", None),
        ("none of Go's, of another zone", None),
        ("a day that is not", None),
        ("the last of all, of another zone", None),
        ("a long one", None),
    ],
)
def test_times_are_normalized_or_dropped(name: str, moment: str | None) -> None:
    assert sanitized_pod_status({"startTime": MOMENTS[name]}).get("startTime") == moment


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Ki", "1Mi"),
        ("1e3", "1e3"),
        ("1u", "1m"),
        ("-1", None),
        ("-1u", None),
        ("Gi", None),
        ("1" * 1000, None),
    ],
)
def test_amounts_are_normalized_or_dropped(text: str, amount: str | None) -> None:
    [container] = sanitized_pod_status({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": text}}]})[
        "containerStatuses"
    ]
    assert container.get("allocatedResources") == (amount and {"cpu": amount})


def test_too_large_status_loses_its_containers() -> None:
    found = sanitized_pod_status({**STATUSES["containers full of text"], "phase": "Running"})
    assert found.keys() == {"phase", "conditions"}
    many = {
        "containerStatuses": [{"name": f"c{number}", "image": "registry.example.com/app:1"} for number in range(200)]
    }
    assert len(sanitized_pod_status(many)["containerStatuses"]) == 200


def test_termination_without_exit_code_is_no_success() -> None:
    [container] = sanitized_pod_status(
        {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": "0"}}}]}
    )["containerStatuses"]
    assert "state" not in container


@given(st.text())
def test_texts_are_truncated_at_characters_once(text: str) -> None:
    short, long = truncate_text(text), truncate_text(text * 500)
    assert truncate_text(short) == short
    assert truncate_text(long) == long
    assert len(long.encode()) <= MAX_TEXT_BYTES


def test_message_keeps_newlines_and_tabs() -> None:
    assert truncate_text("a\tb\nc ünï") == "a\tb\nc ünï"


FIELDS = sorted({*STATUS_FIELDS, *CONTAINER_FIELDS, "type", "status", "ip", "running", "terminated", "exitCode"})
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([TIME, "True", "Ready", "10.0.0.1", "::1", "1Gi"])
)


def some_json(leaves: int) -> st.SearchStrategy[Any]:
    return st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
        max_leaves=leaves,
    )


@given(some_json(40))
def test_safety_rule_9_sanitizing_any_json_is_bounded_and_idempotent(status: Any) -> None:
    found = sanitized_pod_status(status)
    check(found)
    assert sanitized_pod_status(found) == found


@given(st.dictionaries(st.sampled_from(sorted(STATUS_FIELDS)), some_json(8), max_size=4))
def test_safety_rule_9_sanitizing_any_status_is_bounded_and_idempotent(status: Object) -> None:
    found = sanitized_pod_status(status)
    check(found)
    assert sanitized_pod_status(found) == found
