"""Rollouts, played against a model: ReplicaSets that do as they are told, some time later."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.controlplane.workloads import rollouts
from tapestry.controlplane.workloads.rollouts import DESIRED_REPLICAS, MAX_REPLICAS, REVISION
from tapestry.kube.objects import Object

Action = Callable[["Model"], None]


def a_deployment(replicas: int = 3, surge: int | str = "25%", unavailable: int | str = "25%", **spec: object) -> Object:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"image": 1}}
    return {
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "strategy": strategy, "template": template, **spec},
    }


@dataclass
class ReplicaSet:
    """What a ReplicaSet is told, what it has, and what it has said of that."""

    image: int
    size: int = 0
    pods: int = 0
    working: int = 0
    generation: int = 1
    said: Object = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def obey(self) -> None:
        self.pods, self.working = self.size, min(self.working, self.size)

    def tell(self) -> None:
        self.said = {
            "replicas": self.pods,
            "availableReplicas": self.working,
            "observedGeneration": self.generation,
        }

    def shown(self) -> Object:
        name = f"web-{self.image}"
        metadata = {
            "name": name,
            "uid": name,
            "creationTimestamp": f"2024-01-01T00:00:{self.image:02}Z",
            "generation": self.generation,
            "annotations": self.annotations,
        }
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"image": self.image}}
        return {"metadata": metadata, "spec": {"replicas": self.size, "template": template}, "status": self.said}


class Model:
    """A Deployment's controller and its ReplicaSets."""

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
        """One pass of the controller; whether it did anything."""
        self.sets.setdefault(self.image, ReplicaSet(self.image))
        shown = [each.shown() for each in self.sets.values()]
        new, old = rollouts.split_replica_sets(self.deployment, shown)
        pods = sum(each.pods for each in self.sets.values() if each.image != self.image)
        step = rollouts.next_rollout_step(self.deployment, new, old, pods)
        bounds = rollouts.bounds_of(self.deployment)
        moved = False
        for each in self.sets.values():
            uid = f"web-{each.image}"
            if uid in step.sizes:
                moved |= each.size != step.sizes[uid]
                each.generation += each.size != step.sizes[uid]
                each.size = step.sizes[uid]
                each.annotations = {DESIRED_REPLICAS: str(bounds.replicas), MAX_REPLICAS: str(bounds.max_replicas)}
        for each in step.to_delete:
            del self.sets[each["spec"]["template"]["spec"]["image"]]
        return moved

    def settle(self) -> list[dict[int, int]]:
        """Everything until nothing moves any more; the sizes on the way."""
        sizes = []
        for _ in range(200):
            moved = self.step()
            sizes.append({each.image: each.size for each in self.sets.values()})
            for each in self.sets.values():
                each.obey()
                each.working = each.pods
                each.tell()
            if not moved and not self.step():
                return sizes
        raise AssertionError(f"never comes to rest: {sizes[-3:]}")

    @property
    def total(self) -> int:
        return sum(each.size for each in self.sets.values())

    @property
    def working(self) -> int:
        """Pods that work and that nobody has decided to let go."""
        return sum(min(each.working, each.size) for each in self.sets.values())


amounts = st.one_of(st.integers(0, 6), st.sampled_from(["0%", "10%", "25%", "50%", "100%"]))


@st.composite
def deployments(draw: st.DrawFn) -> Object:
    return a_deployment(draw(st.integers(0, 12)), draw(amounts), draw(amounts))


@st.composite
def courses(draw: st.DrawFn) -> list[tuple[str, int]]:
    what = st.sampled_from(["step", "step", "step", "obey", "obey", "work", "work", "tell", "roll"])
    return draw(st.lists(st.tuples(what, st.integers(1, 4)), max_size=80))


def play(model: Model, what: str, number: int) -> None:
    found = list(model.sets.values())[number % len(model.sets)]
    if what == "step":
        model.step()
    elif what == "roll":
        model.roll_to(number)
    elif what == "obey":
        found.obey()
    elif what == "work":
        found.working = min(found.working + number, found.pods)
    else:
        found.tell()


@settings(max_examples=400)
@given(deployments(), courses())
def test_a_rollout_never_has_too_many_pods_or_too_few_that_work(
    deployment: Object, course: list[tuple[str, int]]
) -> None:
    model, bounds = Model(deployment), rollouts.bounds_of(deployment)
    model.settle()
    for what, number in course:
        play(model, what, number)
        assert model.total <= bounds.max_replicas
        assert model.working >= bounds.min_available
    model.settle()
    assert {each.image: each.size for each in model.sets.values() if each.size} == (
        {model.image: bounds.replicas} if bounds.replicas else {}
    )


@given(deployments(), courses(), st.lists(st.integers(0, 12), max_size=4))
def test_a_rollout_that_is_resized_on_its_way_comes_to_its_end(
    deployment: Object, course: list[tuple[str, int]], sizes: list[int]
) -> None:
    model = Model(deployment)
    model.settle()
    for size in sizes:
        for what, number in course[: len(course) // 2]:
            play(model, what, number)
        model.change(replicas=size)
        model.step()
        assert model.total <= max(rollouts.bounds_of(model.deployment).max_replicas, model.working)
    model.settle()
    assert model.sets[model.image].size == model.total == model.deployment["spec"]["replicas"]


@given(st.integers(1, 20), amounts, amounts, st.integers(1, 20))
def test_a_deployment_that_is_paused_keeps_to_its_limit(
    replicas: int, surge: int | str, unavailable: int | str, size: int
) -> None:
    model = Model(a_deployment(replicas, surge, unavailable))
    model.settle()
    model.roll_to(2)
    model.step()
    model.change(paused=True, replicas=size)
    for _ in range(5):
        model.step()
        for each in model.sets.values():
            each.obey()
            each.tell()
    assert model.total <= rollouts.bounds_of(model.deployment).max_replicas
    assert model.total >= size
    model.change(paused=False)
    model.settle()
    assert model.sets[2].size == model.total == size


def test_pods_move_as_kubernetes_moves_them() -> None:
    model = Model(a_deployment(4, "25%", "25%"))
    model.settle()
    model.roll_to(2)
    assert model.settle()[:4] == [{1: 4, 2: 1}, {1: 2, 2: 1}, {1: 2, 2: 3}, {1: 0, 2: 3}]


def test_recreate_first_has_none_of_the_old() -> None:
    model = Model(a_deployment(3, strategy={"type": "Recreate"}))
    model.settle()
    model.roll_to(2)
    sizes = model.settle()
    assert sizes[:2] == [{1: 0, 2: 0}, {1: 0, 2: 3}]


def test_recreate_waits_for_the_last_of_the_old_pods() -> None:
    model = Model(a_deployment(3, strategy={"type": "Recreate"}))
    model.settle()
    model.roll_to(2)
    model.step()
    assert not model.step()
    assert model.sets[2].size == 0


def test_what_never_worked_goes_first() -> None:
    model = Model(a_deployment(4, 1, 1))
    model.settle()
    model.roll_to(2)
    for _ in range(3):  # the second image never works
        model.step()
        for each in model.sets.values():
            each.obey()
            each.tell()
    assert (model.sets[1].size, model.sets[2].size) == (3, 2)
    model.roll_to(3)
    model.step()
    assert model.sets[3].size == 0
    assert not model.step() or model.sets[2].size < 2
    assert model.sets[1].size == 3
    model.settle()
    assert model.sets[3].size == model.total == 4


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "bounds"),
    [
        (10, "25%", "25%", (13, 8)),
        (1, "25%", "25%", (2, 1)),
        (3, 0, "25%", (3, 2)),  # both round to none
        (4, 0, 10, (4, 0)),
        (0, 1, 1, (1, 0)),
    ],
)
def test_bounds_are_rounded_as_kubernetes_does(
    replicas: int, surge: int | str, unavailable: int | str, bounds: tuple[int, int]
) -> None:
    found = rollouts.bounds_of(a_deployment(replicas, surge, unavailable))
    assert (found.max_replicas, found.min_available) == bounds


def test_old_sets_beyond_the_limit_are_forgotten_from_the_first() -> None:
    model = Model(a_deployment(1, revisionHistoryLimit=2))
    for image in range(1, 7):
        model.roll_to(image)
        model.settle()
        model.sets[image].annotations[REVISION] = str(image)
    model.step()
    assert sorted(model.sets) == [4, 5, 6]


def test_of_two_sets_with_the_same_template_the_older_is_the_new_one() -> None:
    deployment = a_deployment()
    older, newer = ReplicaSet(1).shown(), ReplicaSet(1).shown()
    newer["metadata"] = {**newer["metadata"], "name": "other", "creationTimestamp": "2025-01-01T00:00:00Z"}
    assert rollouts.split_replica_sets(deployment, [newer, older]) == (older, [newer])


@pytest.mark.parametrize("value", ["", "many", "-1", "²"])
def test_an_annotation_that_has_no_number_counts_for_nothing(value: str) -> None:
    assert rollouts.revision_of({"metadata": {"name": "x", "annotations": {REVISION: value}}}) == 0


def test_a_set_that_has_yet_to_see_its_size_is_not_believed() -> None:
    model = Model(a_deployment(10, 2, 2))
    model.settle()
    for image in (2, 1, 2, 1):
        model.roll_to(image)
        for _ in range(4):
            model.step()
            assert model.working >= 8
            for each in model.sets.values():
                each.obey()
            model.sets[2].working = model.sets[2].pods // 2
            model.sets[2].tell()  # the first says nothing all the while
