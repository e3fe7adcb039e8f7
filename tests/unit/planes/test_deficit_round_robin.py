"""Deficit round robin: no time is wasted, nobody starves, and an owner with little work waits a bounded time."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.planes.deficit_round_robin import MIN_EXPECTED_NS, DeficitRoundRobin, Flow

MS = 1_000_000
QUANTUM, BUDGET, MAX_COST = 2 * MS, 4 * MS, 3 * MS
Item = tuple[str, int, int]
"""Owner, number and cost of an item."""


class Simulation:
    """Owners whose items take the time that their cost says."""

    def __init__(self) -> None:
        self.queue: DeficitRoundRobin[Item] = DeficitRoundRobin(QUANTUM)
        self.flows: dict[str, Flow[Item]] = {}
        self.pushed = 0
        self.done: list[Item] = []

    def push(self, owner: str, cost: int) -> Item:
        self.pushed += 1
        item = owner, self.pushed, cost
        self.queue.push(self.flows.setdefault(owner, Flow()), item)
        return item

    def run_batch(self) -> list[Item]:
        batch = self.queue.take(BUDGET)
        for owner, _, cost in batch:
            self.use(owner, cost)
        self.done += batch
        return batch

    def use(self, owner: str, cost: int) -> None:
        self.flows[owner].loop_ns += cost
        self.flows[owner].steps += 1

    @property
    def waiting(self) -> int:
        return sum(len(flow.waiting) for flow in self.flows.values())


COSTS = st.integers(0, MAX_COST)
ACTIONS = st.lists(
    st.one_of(st.tuples(st.sampled_from("abcd"), COSTS), st.just(("", 0)), st.tuples(st.sampled_from("AB"), COSTS)),
    max_size=80,
)


@given(ACTIONS)
def test_each_item_is_returned_once_in_order(actions: list[tuple[str, int]]) -> None:
    simulation = Simulation()
    pushed = []
    for owner, cost in actions:
        if not owner:
            assert bool(simulation.waiting) == bool(simulation.run_batch())
        elif owner.isupper():  # work that did not wait
            if owner.lower() in simulation.flows:
                simulation.use(owner.lower(), cost)
        else:
            pushed.append(simulation.push(owner, cost))
    while simulation.waiting:
        assert simulation.run_batch()
    assert sorted(simulation.done, key=lambda item: item[1]) == pushed
    for owner in simulation.flows:
        numbers = [item[1] for item in simulation.done if item[0] == owner]
        assert numbers == sorted(numbers)
    assert simulation.run_batch() == []


@given(st.lists(COSTS, min_size=1, max_size=20), st.lists(COSTS, min_size=1, max_size=20), st.integers(5, 20))
def test_busy_owners_get_equal_time(first: list[int], second: list[int], batches: int) -> None:
    """Whatever their items cost, and however many wait."""
    simulation = Simulation()
    for _ in range(batches):
        for owner, costs, depth in (("a", first, 80), ("b", second, 40)):
            flow = simulation.flows.get(owner)
            for number in range(depth - len(flow.waiting) if flow is not None else depth):
                simulation.push(owner, max(costs[number % len(costs)], MIN_EXPECTED_NS))
        simulation.run_batch()
    used = {owner: flow.loop_ns for owner, flow in simulation.flows.items()}
    error = BUDGET // MIN_EXPECTED_NS * MAX_COST  # items of one batch that were expected to be short
    assert abs(used["a"] - used["b"]) <= 2 * (QUANTUM + MAX_COST) + error


@given(st.integers(1, 8), COSTS, st.integers(0, 10))
def test_new_owner_waits_for_one_batch(busy: int, cost: int, batches: int) -> None:
    """An owner that did not wait is served before all that wait longer, however much they have."""
    simulation = Simulation()
    for owner in range(busy):
        for _ in range(200):
            simulation.push(f"busy-{owner}", max(cost, MIN_EXPECTED_NS))
    for _ in range(batches + busy):  # until none of them is new
        simulation.run_batch()
    item = simulation.push("light", MIN_EXPECTED_NS)
    assert simulation.run_batch()[0] == item


@given(st.integers(1, 10))
def test_new_owners_do_not_starve_old_owners(new_owners: int) -> None:
    """An owner that always waits gets half of an equal share, however often others start to wait again."""
    simulation = Simulation()
    for _ in range(300):
        simulation.push("old", MS)
    for _ in range(120):
        for number in range(new_owners):
            simulation.push(f"new-{number}", MS)
        simulation.run_batch()
    total = sum(flow.loop_ns for flow in simulation.flows.values())
    share = total // (new_owners + 1)
    assert simulation.flows["old"].loop_ns >= share // 2


def test_owner_pays_for_work_that_was_not_expected() -> None:
    simulation = Simulation()
    for owner in "ab":
        for _ in range(100):
            simulation.push(owner, 1 * MS)
    for _ in range(10):
        simulation.run_batch()
    simulation.use("a", 50 * MS)  # for example by its watches
    batches = [simulation.run_batch() for _ in range(10)]
    assert {item[0] for batch in batches for item in batch} == {"b"}


def test_owner_in_debt_runs_if_no_other_waits() -> None:
    simulation = Simulation()
    for _ in range(10):
        simulation.push("a", 100 * MS)
    while simulation.waiting:
        assert simulation.run_batch()


def test_owner_waits_in_another_queue_with_its_debt() -> None:
    simulation, other = Simulation(), DeficitRoundRobin[Item](QUANTUM)
    for owner in "ab":
        for _ in range(20):
            simulation.push(owner, MAX_COST)
    simulation.run_batch()
    simulation.use("a", 50 * MS)
    a = simulation.flows["a"]
    simulation.queue.move(a, other)
    assert {item[0] for item in simulation.run_batch()} == {"b"}
    assert [item[0] for item in other.take(1)] == ["a"]
    assert a in other.owners
    assert a not in simulation.queue.owners
    other.move(simulation.flows.setdefault("c", Flow()), simulation.queue)  # it is in no queue
    assert simulation.flows["c"] not in simulation.queue.owners
