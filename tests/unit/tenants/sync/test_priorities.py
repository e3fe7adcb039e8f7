"""Priorities of a tenant's pods in the range that its HostCluster allows."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.tenants.sync.priorities import class_of_priority, known_priorities

CLASSES = ("low", "normal", "high")
SYSTEM = 2_000_000_000
VALUES = st.lists(st.integers(-(2**31), 1_000_000_000), max_size=8)


def test_values_are_spread_over_the_range() -> None:
    values = known_priorities([100, 1000, SYSTEM, SYSTEM + 1000])
    found = {each: class_of_priority(each, values, CLASSES) for each in (0, 100, 1000, SYSTEM)}
    assert found == {0: "low", 100: "normal", 1000: "high", SYSTEM: "high"}
    assert class_of_priority(-5, known_priorities([-5, 10]), ("low", "high")) == "low"


def test_pods_without_classes_have_the_lowest() -> None:
    assert class_of_priority(0, known_priorities([]), CLASSES) == "low"
    assert class_of_priority(0, known_priorities([SYSTEM]), CLASSES) == "low"
    assert class_of_priority(7, known_priorities([5]), ["only"]) == "only"


@given(VALUES, st.integers(1, 6))
def test_classes_have_the_order_of_the_priorities(values: list[int], count: int) -> None:
    classes = [f"class-{number}" for number in range(count)]
    known = known_priorities(values)
    given = sorted({*values, 0, SYSTEM, -(2**31), 999_999_999})
    found = [class_of_priority(each, known, classes) for each in given]
    assert found == sorted(found)
