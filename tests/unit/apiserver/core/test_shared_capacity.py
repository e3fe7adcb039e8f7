"""A shared capacity: no owner can take all of it, and what is released can be taken again."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core.shared_capacity import SharedCapacity


def take_all(capacity: SharedCapacity, owner: str) -> int:
    while capacity.has_capacity(owner):
        capacity.acquire(owner)
    return capacity.held(owner)


def test_owners_get_equal_parts_and_leave_one() -> None:
    capacity = SharedCapacity(100)
    assert take_all(capacity, "a") == 50
    assert take_all(capacity, "b") == 25
    capacity.release("a", 50)
    assert take_all(capacity, "b") == 50


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40)), max_size=60))
def test_small_amount_is_always_left_for_a_new_owner(requests: list[tuple[str, int]]) -> None:
    capacity = SharedCapacity(700)
    for owner, amount in requests:
        if capacity.has_capacity(owner, amount):
            capacity.acquire(owner, amount)
    assert capacity.has_capacity("new", 700 // 2 ** (6 + 1) // 2)
    for owner in "abcdef":
        capacity.release(owner, capacity.held(owner))
    assert capacity.has_capacity("a", 350)
