from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapestry.controller.store import Store
from tapestry.kube.objects import Object, key_of, labels_of

NAMES = st.sampled_from(["a", "b", "c", "d"])
NAMESPACES = st.sampled_from([None, "default", "kube-system"])
NODES = st.sampled_from(["", "n1", "n2", "n3"])
LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y"]))


def new_pod(name: str, namespace: str | None = "default", node: str = "", **labels: str) -> Object:
    metadata = {"name": name, "labels": labels, **({"namespace": namespace} if namespace else {})}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def node_of(pod: Object) -> Iterable[str]:
    return [pod["spec"]["nodeName"]] if pod["spec"]["nodeName"] else []


def labels(pod: Object) -> Iterable[str]:
    return [text for key, value in labels_of(pod).items() for text in (f"{key}={value}", key)]


class StoreModel(RuleBasedStateMachine):
    """A store with indexes compared with a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.indexers = {"node": node_of}
        self.store = Store(self.indexers)
        self.model: dict[str, Object] = {}

    @rule(name=NAMES, namespace=NAMESPACES, node=NODES, labels=LABELS)
    def put(self, name: str, namespace: str | None, node: str, labels: dict[str, str]) -> None:
        pod = new_pod(name, namespace, node, **labels)
        assert self.store.put(key_of(pod), pod) is self.model.get(key_of(pod))
        self.model[key_of(pod)] = pod

    @rule(name=NAMES, namespace=NAMESPACES)
    def remove(self, name: str, namespace: str | None) -> None:
        key = key_of(new_pod(name, namespace))
        assert self.store.remove(key) is self.model.pop(key, None)

    @precondition(lambda self: "label" not in self.indexers)
    @rule()
    def index_by_label(self) -> None:
        self.indexers = {**self.indexers, "label": labels}
        self.store.add_index("label", labels)

    @invariant()
    def has_the_same_objects(self) -> None:
        assert len(self.store) == len(self.model)
        assert {key: self.store.get(key) for key in self.store} == self.model
        assert sorted(map(key_of, self.store.list())) == sorted(self.model)
        assert all(key in self.store for key in self.model)
        assert self.store.get("nowhere/nobody") is None
        assert "nowhere/nobody" not in self.store

    @invariant()
    def indexes_find_the_same_objects(self) -> None:
        for name, indexer in self.indexers.items():
            for value in ("n1", "n2", "n3", "app=x", "app=y", "tier=x", "tier=y", "app", "tier", "unheard of"):
                wanted = [pod for pod in self.model.values() if value in indexer(pod)]
                found = self.store.by(name, value)
                assert Counter(map(key_of, found)) == Counter(map(key_of, wanted))
                assert all(pod is self.model[key_of(pod)] for pod in found)
                assert list(self.store.iter_by(name, value)) == found
            assert set(self.store.index_values(name)) == {
                value for pod in self.model.values() for value in indexer(pod)
            }


TestStoreModel = StoreModel.TestCase


def test_changed_object_moves_between_index_values() -> None:
    store = Store({"node": node_of})
    store.put("default/a", new_pod("a", node="n1"))
    store.put("default/a", new_pod("a", node="n2"))
    assert store.by("node", "n1") == []
    assert [key_of(pod) for pod in store.by("node", "n2")] == ["default/a"]


def test_store_may_change_during_iteration() -> None:
    store = Store()
    for name in "abc":
        store.put(f"default/{name}", new_pod(name))
    for key in store:
        store.remove(key)
    assert len(store) == 0


def test_same_index_may_be_added_twice() -> None:
    store = Store({"node": node_of})
    store.put("default/a", new_pod("a", node="n1"))
    store.add_index("node", node_of)
    assert len(store.by("node", "n1")) == 1


def test_different_indexers_cannot_share_a_name() -> None:
    store = Store({"node": node_of})
    with pytest.raises(ValueError, match="index 'node' already has another indexer"):
        store.add_index("node", labels)


def test_unknown_index_is_an_error() -> None:
    with pytest.raises(KeyError, match="node"):
        Store().by("node", "n1")
