"""Tests of rollouts against a model in which ReplicaSets react with delay."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.controlplane.workloads import rollouts
from tapestry.controlplane.workloads.rollouts import DESIRED_REPLICAS, MAX_REPLICAS, REVISION
from tapestry.kube.objects import Object

Action = Callable[["Model"], None]


def new_deployment(
    replicas: int = 3, surge: int | str = "25%", unavailable: int | str = "25%", **spec: object
) -> Object:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"image": 1}}
    return {
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "strategy": strategy, "template": template, **spec},
    }


@dataclass
class ReplicaSet:
    """Desired size, pods and reported status of a ReplicaSet."""

    image: int
    size: int = 0
    pods: int = 0
    available: int = 0
    generation: int = 1
    status: Object = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def scale_pods(self) -> None:
        self.pods, self.available = self.size, min(self.available, self.size)

    def report(self) -> None:
        self.status = {
            "replicas": self.pods,
            "availableReplicas": self.available,
            "observedGeneration": self.generation,
        }

    def as_object(self) -> Object:
        name = f"web-{self.image}"
        metadata = {
            "name": name,
            "uid": name,
            "creationTimestamp": f"2024-01-01T00:00:{self.image:02}Z",
            "generation": self.generation,
            "annotations": self.annotations,
        }
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"image": self.image}}
        return {"metadata": metadata, "spec": {"replicas": self.size, "template": template}, "status": self.status}


class Model:
    """A Deployment controller and its ReplicaSets."""

    def __init__(self, deployment: Object) -> None:
        self.deployment = deployment
        self.sets: dict[int, ReplicaSet] = {}

    @property
    def image(self) -> int:
        number: int = self.deployment["spec"]["template"]["spec"]["image"]
        return number

    def change(self, **spec: object) -> None:
        self.deployment = {**self.deployment, "spec": {**self.deployment["spec"], **spec}}

    def roll_to(self, image: int) -> None:
        self.change(template={**self.deployment["spec"]["template"], "spec": {"image": image}})

    def step(self) -> bool:
        """Run one reconcile. Return whether it resized anything."""
        self.sets.setdefault(self.image, ReplicaSet(self.image))
        replica_sets = [each.as_object() for each in self.sets.values()]
        new, old = rollouts.split_replica_sets(self.deployment, replica_sets)
        pods = sum(each.pods for each in self.sets.values() if each.image != self.image)
        step = rollouts.next_rollout_step(self.deployment, new, old, pods)
        bounds = rollouts.bounds_of(self.deployment)
        is_changed = False
        for each in self.sets.values():
            uid = f"web-{each.image}"
            if uid in step.sizes:
                is_changed |= each.size != step.sizes[uid]
                each.generation += each.size != step.sizes[uid]
                each.size = step.sizes[uid]
                each.annotations = {DESIRED_REPLICAS: str(bounds.replicas), MAX_REPLICAS: str(bounds.max_replicas)}
        for each in step.to_delete:
            del self.sets[each["spec"]["template"]["spec"]["image"]]
        return is_changed

    def converge(self) -> list[dict[int, int]]:
        """Run until nothing changes. Return all intermediate sizes."""
        sizes = []
        for _ in range(200):
            is_changed = self.step()
            sizes.append({each.image: each.size for each in self.sets.values()})
            for each in self.sets.values():
                each.scale_pods()
                each.available = each.pods
                each.report()
            if not is_changed and not self.step():
                return sizes
        raise AssertionError(f"does not converge: {sizes[-3:]}")

    @property
    def total(self) -> int:
        return sum(each.size for each in self.sets.values())

    @property
    def available(self) -> int:
        """Available pods that are not scheduled for removal."""
        return sum(min(each.available, each.size) for each in self.sets.values())


amounts = st.one_of(st.integers(0, 6), st.sampled_from(["0%", "10%", "25%", "50%", "100%"]))


@st.composite
def deployments(draw: st.DrawFn) -> Object:
    return new_deployment(draw(st.integers(0, 12)), draw(amounts), draw(amounts))


@st.composite
def event_lists(draw: st.DrawFn) -> list[tuple[str, int]]:
    event = st.sampled_from(["step", "step", "step", "scale_pods", "scale_pods", "work", "work", "report", "roll"])
    return draw(st.lists(st.tuples(event, st.integers(1, 4)), max_size=80))


def apply_event(model: Model, event: str, number: int) -> None:
    found = list(model.sets.values())[number % len(model.sets)]
    if event == "step":
        model.step()
    elif event == "roll":
        model.roll_to(number)
    elif event == "scale_pods":
        found.scale_pods()
    elif event == "work":
        found.available = min(found.available + number, found.pods)
    else:
        found.report()


@settings(max_examples=400)
@given(deployments(), event_lists())
def test_rollout_respects_surge_and_availability(deployment: Object, events: list[tuple[str, int]]) -> None:
    model, bounds = Model(deployment), rollouts.bounds_of(deployment)
    model.converge()
    for event, number in events:
        apply_event(model, event, number)
        assert model.total <= bounds.max_replicas
        assert model.available >= bounds.min_available
    model.converge()
    assert {each.image: each.size for each in model.sets.values() if each.size} == (
        {model.image: bounds.replicas} if bounds.replicas else {}
    )


@given(deployments(), event_lists(), st.lists(st.integers(0, 12), max_size=4))
def test_resized_rollout_completes(deployment: Object, events: list[tuple[str, int]], sizes: list[int]) -> None:
    model = Model(deployment)
    model.converge()
    for size in sizes:
        for event, number in events[: len(events) // 2]:
            apply_event(model, event, number)
        model.change(replicas=size)
        model.step()
        assert model.total <= max(rollouts.bounds_of(model.deployment).max_replicas, model.available)
    model.converge()
    assert model.sets[model.image].size == model.total == model.deployment["spec"]["replicas"]


@given(st.integers(1, 20), amounts, amounts, st.integers(1, 20))
def test_paused_deployment_respects_surge_limit(
    replicas: int, surge: int | str, unavailable: int | str, size: int
) -> None:
    model = Model(new_deployment(replicas, surge, unavailable))
    model.converge()
    model.roll_to(2)
    model.step()
    model.change(paused=True, replicas=size)
    for _ in range(5):
        model.step()
        for each in model.sets.values():
            each.scale_pods()
            each.report()
    assert model.total <= rollouts.bounds_of(model.deployment).max_replicas
    assert model.total >= size
    model.change(paused=False)
    model.converge()
    assert model.sets[2].size == model.total == size


def test_rollout_sizes_match_kubernetes() -> None:
    model = Model(new_deployment(4, "25%", "25%"))
    model.converge()
    model.roll_to(2)
    assert model.converge()[:4] == [{1: 4, 2: 1}, {1: 2, 2: 1}, {1: 2, 2: 3}, {1: 0, 2: 3}]


def test_recreate_scales_old_sets_down_first() -> None:
    model = Model(new_deployment(3, strategy={"type": "Recreate"}))
    model.converge()
    model.roll_to(2)
    sizes = model.converge()
    assert sizes[:2] == [{1: 0, 2: 0}, {1: 0, 2: 3}]


def test_recreate_waits_for_last_old_pod() -> None:
    model = Model(new_deployment(3, strategy={"type": "Recreate"}))
    model.converge()
    model.roll_to(2)
    model.step()
    assert not model.step()
    assert model.sets[2].size == 0


def test_unavailable_pods_are_removed_first() -> None:
    model = Model(new_deployment(4, 1, 1))
    model.converge()
    model.roll_to(2)
    for _ in range(3):  # the second image never becomes available
        model.step()
        for each in model.sets.values():
            each.scale_pods()
            each.report()
    assert (model.sets[1].size, model.sets[2].size) == (3, 2)
    model.roll_to(3)
    model.step()
    assert model.sets[3].size == 0
    assert not model.step() or model.sets[2].size < 2
    assert model.sets[1].size == 3
    model.converge()
    assert model.sets[3].size == model.total == 4


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "bounds"),
    [
        (10, "25%", "25%", (13, 8)),
        (1, "25%", "25%", (2, 1)),
        (3, 0, "25%", (3, 2)),  # both round to zero
        (4, 0, 10, (4, 0)),
        (0, 1, 1, (1, 0)),
    ],
)
def test_bounds_are_rounded_as_in_kubernetes(
    replicas: int, surge: int | str, unavailable: int | str, bounds: tuple[int, int]
) -> None:
    found = rollouts.bounds_of(new_deployment(replicas, surge, unavailable))
    assert (found.max_replicas, found.min_available) == bounds


def test_oldest_sets_over_limit_are_deleted() -> None:
    model = Model(new_deployment(1, revisionHistoryLimit=2))
    for image in range(1, 7):
        model.roll_to(image)
        model.converge()
        model.sets[image].annotations[REVISION] = str(image)
    model.step()
    assert sorted(model.sets) == [4, 5, 6]


def test_older_of_two_matching_sets_is_new() -> None:
    deployment = new_deployment()
    older, newer = ReplicaSet(1).as_object(), ReplicaSet(1).as_object()
    newer["metadata"] = {**newer["metadata"], "name": "other", "creationTimestamp": "2025-01-01T00:00:00Z"}
    assert rollouts.split_replica_sets(deployment, [newer, older]) == (older, [newer])


@pytest.mark.parametrize("value", ["", "many", "-1", "²"])
def test_invalid_annotation_number_is_zero(value: str) -> None:
    assert rollouts.revision_of({"metadata": {"name": "x", "annotations": {REVISION: value}}}) == 0


def test_unobserved_status_blocks_scale_down() -> None:
    model = Model(new_deployment(10, 2, 2))
    model.converge()
    for image in (2, 1, 2, 1):
        model.roll_to(image)
        for _ in range(4):
            model.step()
            assert model.available >= 8
            for each in model.sets.values():
                each.scale_pods()
            model.sets[2].available = model.sets[2].pods // 2
            model.sets[2].report()  # the first never reports
