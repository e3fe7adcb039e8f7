"""Tests of the selection of pods by label."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tapestry.controller.informer import Informer
from tapestry.controller.store import Store
from tapestry.controlplane.labeled_pods import LabeledPods
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of
from tapestry.kube.selectors import LabelSelector, parse_label_selector

LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xyz"))
NAMESPACES = st.sampled_from(["one", "two"])
CHANGES = st.tuples(NAMESPACES, st.integers(0, 4), st.one_of(st.none(), LABELS))
SELECTORS = st.sampled_from(["", "a=x", "a=y,b=x", "a in (x,y)", "a!=x", "b", "!b", "a=x,a=y"])


class Pods:
    """The part of an informer that is used."""

    def __init__(self) -> None:
        self.store: Store[Object] = Store()
        self.handlers: list[Any] = []

    def on_change(self, handler: Any) -> None:
        self.handlers.append(handler)

    def change(self, namespace: str, name: str, labels: dict[str, str] | None) -> None:
        key = f"{namespace}/{name}"
        pod = {"metadata": {"namespace": namespace, "name": name, "labels": labels}} if labels is not None else None
        old = self.store.remove(key) if pod is None else self.store.put(key, pod)
        for handler in self.handlers if old is not None or pod is not None else ():
            handler(old, pod)


def scanned(pods: Pods, namespace: str, selector: LabelSelector) -> list[str]:
    found = (each for each in pods.store.list() if namespace_of(each) == namespace)
    return sorted(key_of(each) for each in found if selector.matches(labels_of(each)))


@given(st.lists(st.tuples(CHANGES, SELECTORS, NAMESPACES), max_size=30))
def test_selection_is_that_of_a_scan(steps: list[tuple[tuple[str, int, dict[str, str] | None], str, str]]) -> None:
    pods = Pods()
    labeled = LabeledPods(cast(Informer, pods))
    for (namespace, number, labels), text, selected in steps:
        pods.change(namespace, f"p{number}", labels)
        selector = parse_label_selector(text)
        assert sorted(map(key_of, labeled.matching(selected, selector))) == scanned(pods, selected, selector)


def test_selection_in_all_namespaces() -> None:
    pods = Pods()
    labeled = LabeledPods(cast(Informer, pods))
    pods.change("one", "p", {"a": "x"})
    pods.change("two", "q", {"a": "x"})
    assert sorted(map(name_of, labeled.matching(None, parse_label_selector("a=x")))) == ["p", "q"]


def test_namespace_without_pods_leaves_nothing() -> None:
    pods = Pods()
    labeled = LabeledPods(cast(Informer, pods))
    pods.change("one", "p", {"a": "x"})
    assert labeled.matching("one", parse_label_selector("a=x"))
    pods.change("one", "p", None)
    assert labeled._values == {}
