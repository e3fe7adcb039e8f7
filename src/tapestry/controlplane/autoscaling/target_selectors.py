"""Selectors of the targets of autoscalers, which find autoscalers that compete for the same pods. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tapestry.kube.objects import Object, labels_of, namespace_of, split_key
from tapestry.kube.selectors import LabelSelector

Label = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TargetSelectors:
    """Selectors by key of the autoscaler, and by a label that they require."""

    selectors: dict[str, tuple[LabelSelector, Label | None]] = field(default_factory=dict)
    by_label: dict[tuple[str | None, Label | None], set[str]] = field(default_factory=dict)
    """Keys of autoscalers by namespace and label; None if a selector requires no value of any label."""

    def put(self, key: str, selector: LabelSelector) -> None:
        if key in self.selectors:
            if self.selectors[key][0] == selector:
                return
            self.remove(key)
        namespace = split_key(key)[0]
        labels: Iterable[Label | None] = selector.required_labels() or (None,)
        label = min(labels, key=lambda each: len(self.by_label.get((namespace, each), ())))
        self.selectors[key] = selector, label
        self.by_label.setdefault((namespace, label), set()).add(key)

    def remove(self, key: str) -> None:
        if key in self.selectors:
            _, label = self.selectors.pop(key)
            place = split_key(key)[0], label
            self.by_label[place].remove(key)
            if not self.by_label[place]:
                del self.by_label[place]

    def competitors(self, key: str, pods: Iterable[Object]) -> set[str]:
        """Return the other autoscalers whose selectors match one of these pods."""
        found: set[str] = set()
        for pod in pods:
            labels = labels_of(pod)
            for label in (None, *labels.items()):
                for other in self.by_label.get((namespace_of(pod), label), ()):
                    if other != key and other not in found and self.selectors[other][0].matches(labels):
                        found.add(other)
        return found
