"""Hooks: the webhooks of all configurations, compiled as these change, and which kinds of write may concern them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.admission.conditions import Conditions, conditions_of
from tapestry.apiserver.admission.matching import GROUP, Attempt, Criteria, Equivalents, webhook_criteria
from tapestry.apiserver.rows import Rows
from tapestry.apiserver.storage.store import Event, Store
from tapestry.kube.cel.errors import CompileError
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import Resource
from tapestry.kube.selectors import SelectorError
from tapestry.process.logs import logger

log = logger(__name__)

MUTATING, VALIDATING = f"mutatingwebhookconfigurations.{GROUP}", f"validatingwebhookconfigurations.{GROUP}"
WITHOUT_EFFECTS = ("None", "NoneOnDryRun")


@dataclass(frozen=True, eq=False)
class Hook:
    """One webhook of a configuration, ready for use."""

    name: str
    client: Object
    criteria: Criteria
    rules: Criteria
    """The criteria without what they ask of objects and namespaces: the same for all writes of a kind."""
    versions: tuple[str, ...]
    """Of AdmissionReviews, that it understands."""
    seconds: int
    may_fail: bool
    has_effects: bool
    is_repeatable: bool
    conditions: Conditions | None


def hook_of(webhook: Object) -> Hook:
    """Raises CompileError or SelectorError."""
    criteria = webhook_criteria(webhook)
    return Hook(
        webhook["name"],
        webhook["clientConfig"],
        criteria,
        Criteria(criteria.rules, by_equivalents=criteria.by_equivalents),
        tuple(webhook.get("admissionReviewVersions") or ()),
        webhook.get("timeoutSeconds") or 10,
        webhook.get("failurePolicy") == "Ignore",
        webhook.get("sideEffects") not in WITHOUT_EFFECTS,
        webhook.get("reinvocationPolicy") == "IfNeeded",
        conditions_of(webhook["matchConditions"]) if webhook.get("matchConditions") else None,
    )


Kind = tuple[str, Resource, str]
"""A kind of write: its operation, resource and subresource."""


class Hooks:
    """The hooks of all configurations of one sort, in their order, and by the kinds of write that may concern them."""

    def __init__(self, store: Store, storage: str, rows: Rows) -> None:
        self._store, self._storage, self._rows = store, storage, rows
        self.equivalents = Equivalents(rows)
        self._hooks: tuple[Hook, ...] = ()
        self._concerned: dict[Kind, tuple[Hook, ...]] = {}
        self._edition = -1
        store.on_change(storage, self._changed)
        self._load()

    @property
    def is_empty(self) -> bool:
        return not self._hooks

    def concerned(self, kind: Kind, attempt: Callable[[], Attempt]) -> tuple[Hook, ...]:
        """The hooks with a rule for such writes; `attempt` is one of them, made only where that is not known yet."""
        if not self._hooks:
            return ()
        if self._edition != self._rows.edition:  # other versions may be served, and count as the same
            self._concerned.clear()
            self._edition = self._rows.edition
        found = self._concerned.get(kind)
        if found is None:
            one = attempt()
            found = () if one.is_exempt else tuple(hook for hook in self._hooks if self._has_rule(hook, one))
            self._concerned[kind] = found
        return found

    def _has_rule(self, hook: Hook, attempt: Attempt) -> bool:
        return hook.rules.matches(attempt, self.equivalents, no_labels) is not None

    def _changed(self, _: Event) -> None:
        self._load()

    def _load(self) -> None:
        found = [msgspec.json.decode(version.raw) for version in self._store.every(self._storage)]
        in_order = sorted(found, key=name_of)
        self._hooks = tuple(hook for one in in_order for hook in hooks_of(one))
        self._concerned.clear()


def hooks_of(configuration: Object) -> Iterator[Hook]:
    for webhook in configuration.get("webhooks") or ():
        try:
            yield hook_of(webhook)
        except (CompileError, SelectorError) as error:  # it was accepted once, by a server that understood it
            log.warning("webhook left out", configuration=name_of(configuration), webhook=webhook["name"], error=error)


def no_labels(_: str) -> Mapping[str, str]:
    return {}
