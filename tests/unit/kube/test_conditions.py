from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.conditions import find_condition, is_condition_true, new_condition, with_condition

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)

claims = st.builds(
    new_condition,
    st.sampled_from(["Ready", "Leasing", "Valid"]),
    st.sampled_from([True, False, None]),
    st.sampled_from(["Fine", "NoPolicy"]),
    observed_generation=st.none() | st.integers(1, 2),
)


def new_object(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "status": {"conditions": list(conditions)}}


@pytest.mark.parametrize(("status", "word"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_status_is_written_as_in_kubernetes(status: bool | None, word: str) -> None:
    assert new_condition("Ready", status, "Why", "because") == {
        "type": "Ready",
        "status": word,
        "reason": "Why",
        "message": "because",
    }


def test_observed_generation_is_optional() -> None:
    assert new_condition("Ready", True, "Why", observed_generation=3)["observedGeneration"] == 3
    assert "observedGeneration" not in new_condition("Ready", True, "Why")


@pytest.mark.parametrize("conditions", [None, []])
def test_first_condition_gets_current_time(conditions: list[dict[str, Any]] | None) -> None:
    new = new_condition("Ready", True, "Why")
    assert with_condition(conditions, new, NOON) == [{**new, "lastTransitionTime": "2024-05-01T12:00:00Z"}]


def test_equal_condition_returns_same_list() -> None:
    before = with_condition(None, new_condition("Ready", True, "Why"), NOON)
    assert with_condition(before, new_condition("Ready", True, "Why"), LATER) is before


def test_new_reason_keeps_transition_time() -> None:
    before = with_condition(None, new_condition("Ready", False, "Starting"), NOON)
    after = with_condition(before, new_condition("Ready", False, "Failed", "out of disk"), LATER)
    assert after == [
        {**new_condition("Ready", False, "Failed", "out of disk"), "lastTransitionTime": "2024-05-01T12:00:00Z"}
    ]


def test_new_status_changes_transition_time() -> None:
    before = with_condition(None, new_condition("Ready", False, "Starting"), NOON)
    after = with_condition(before, new_condition("Ready", None, "Silent"), LATER)
    assert after[0]["lastTransitionTime"] == "2024-05-01T13:00:00Z"


def test_mirrored_condition_keeps_its_transition_time() -> None:
    mirrored = {**new_condition("Ready", True, "Why"), "lastTransitionTime": "2024-05-01T11:11:11Z"}
    assert with_condition(None, mirrored, NOON) == [mirrored]


def test_unchanged_status_ignores_new_transition_time() -> None:
    before = with_condition(None, new_condition("Ready", True, "Why"), NOON)
    mirrored = {**new_condition("Ready", True, "Why"), "lastTransitionTime": "2024-05-01T12:30:00Z"}
    assert with_condition(before, mirrored, LATER) is before


def test_condition_without_time_gets_current_time() -> None:
    without_time = [new_condition("Ready", True, "Why")]
    assert (
        with_condition(without_time, new_condition("Ready", True, "Why"), NOON)[0]["lastTransitionTime"]
        == "2024-05-01T12:00:00Z"
    )


def test_other_conditions_keep_their_position() -> None:
    before = [{"type": name, "status": "True", "lastTransitionTime": "t"} for name in ("A", "B", "C")]
    after = with_condition(before, new_condition("B", False, "Why"), NOON)
    assert [each["type"] for each in after] == ["A", "B", "C"]
    assert after[0] is before[0]
    assert after[2] is before[2]


@given(st.lists(claims, max_size=8))
def test_last_condition_of_each_type_wins(history: list[dict[str, Any]]) -> None:
    conditions: list[dict[str, Any]] = []
    changed_at: dict[str, datetime] = {}
    for hour, claim in enumerate(history):
        now = NOON + timedelta(hours=hour)
        old = find_condition(conditions, claim["type"])
        if old is None or old["status"] != claim["status"]:
            changed_at[claim["type"]] = now
        before = [dict(each) for each in conditions]
        updated = with_condition(conditions, claim, now)
        assert conditions == before
        assert (updated is conditions) == (updated == conditions)
        conditions = updated
    assert [each["type"] for each in conditions] == list(changed_at)
    for each in conditions:
        last = [claim for claim in history if claim["type"] == each["type"]][-1]
        assert each == {**last, "lastTransitionTime": f"{changed_at[each['type']]:%Y-%m-%dT%H:%M:%SZ}"}


def test_condition_is_found_by_type() -> None:
    ready = new_condition("Ready", True, "Why")
    assert find_condition([new_condition("Valid", False, "Why"), ready], "Ready") is ready
    assert find_condition([ready], "Valid") is None
    assert find_condition(None, "Ready") is None


@pytest.mark.parametrize(("status", "expected"), [(True, True), (False, False), (None, False)])
def test_only_status_true_is_true(status: bool | None, expected: bool) -> None:
    assert is_condition_true(new_object(new_condition("Ready", status, "Why")), "Ready") is expected


@pytest.mark.parametrize("obj", [new_object(), {"metadata": {}}, {"status": None}, {"status": {"conditions": None}}])
def test_missing_condition_is_not_true(obj: dict[str, Any]) -> None:
    assert not is_condition_true(obj, "Ready")
