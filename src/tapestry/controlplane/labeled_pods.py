"""Pods by the labels that selectors require, so that a selector is not compared with every pod of a namespace."""

from collections.abc import Iterable

from tapestry.controller import Informer
from tapestry.controller.controller import own_namespace
from tapestry.kube.objects import Object, key_of, labels_of, namespace_of
from tapestry.kube.selectors import LabelSelector

NAMESPACE_INDEX = "namespace"


class LabeledPods:
    """Pods of an informer. Only labels that a selector has required before are indexed."""

    def __init__(self, pods: Informer) -> None:
        self._pods = pods.store
        self._pods.add_index(NAMESPACE_INDEX, own_namespace)
        self._values: dict[str, dict[str, dict[str, set[str]]]] = {}
        """Keys of pods by namespace, name of a label, and value."""
        pods.on_change(self._update)

    def get(self, key: str) -> Object | None:
        return self._pods.get(key)

    def matching(self, namespace: str | None, selector: LabelSelector) -> list[Object]:
        """Return the pods of a namespace, or of all, that the selector matches."""
        label = next(iter(selector.required_labels()), None)
        candidates: Iterable[Object | None]
        if namespace is None:
            candidates = self._pods.list()
        elif label is None:
            candidates = self._pods.iter_by(NAMESPACE_INDEX, namespace)
        else:
            candidates = map(self._pods.get, self._indexed(namespace, label[0]).get(label[1], ()))
        return [pod for pod in candidates if pod is not None and selector.matches(labels_of(pod))]

    def _indexed(self, namespace: str, name: str) -> dict[str, set[str]]:
        names = self._values.setdefault(namespace, {})
        if name not in names:
            values = names[name] = {}
            for pod in self._pods.iter_by(NAMESPACE_INDEX, namespace):
                if (value := labels_of(pod).get(name)) is not None:
                    values.setdefault(value, set()).add(key_of(pod))
        return names[name]

    def _update(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        names = self._values.get(namespace_of(pod) or "") if pod is not None else None
        if pod is None or not names:
            return
        before, after = labels_of(old) if old is not None else {}, labels_of(new) if new is not None else {}
        if before == after:
            return
        key = key_of(pod)
        for name, value in before.items():
            if name in names and after.get(name) != value:
                names[name][value].discard(key)
                if not names[name][value]:
                    del names[name][value]
        for name, value in after.items():
            if name in names and before.get(name) != value:
                names[name].setdefault(value, set()).add(key)
        if new is None and not any(names.values()):
            del self._values[namespace_of(pod) or ""]
