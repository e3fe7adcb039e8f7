"""Hooks: the webhooks of all configurations, compiled as these change, and which kinds of write may concern them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.admission.match_conditions import MatchConditions, compile_conditions
from tapestry.apiserver.admission.matching import (
    GROUP,
    AdmissionAttributes,
    EquivalentResources,
    MatchCriteria,
    webhook_criteria,
)
from tapestry.apiserver.resource_registry import ResourceRegistry
from tapestry.apiserver.storage.store import Store, WatchEvent
from tapestry.kube.cel.errors import CompileError
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import Resource
from tapestry.kube.selectors import SelectorError
from tapestry.process.logs import logger

log = logger(__name__)

MUTATING, VALIDATING = f"mutatingwebhookconfigurations.{GROUP}", f"validatingwebhookconfigurations.{GROUP}"
NO_SIDE_EFFECTS = ("None", "NoneOnDryRun")


@dataclass(frozen=True, eq=False)
class Webhook:
    """One webhook of a configuration, ready for use."""

    name: str
    client_config: Object
    criteria: MatchCriteria
    rule_criteria: MatchCriteria
    """The criteria without what they ask of objects and namespaces: the same for all writes of a kind."""
    review_versions: tuple[str, ...]
    """Of AdmissionReviews, that it understands."""
    timeout_seconds: int
    fails_open: bool
    has_side_effects: bool
    is_reinvocable: bool
    conditions: MatchConditions | None


def compile_webhook(webhook: Object) -> Webhook:
    """Raises CompileError or SelectorError."""
    criteria = webhook_criteria(webhook)
    return Webhook(
        webhook["name"],
        webhook["clientConfig"],
        criteria,
        MatchCriteria(criteria.rules, matches_equivalent=criteria.matches_equivalent),
        tuple(webhook.get("admissionReviewVersions") or ()),
        webhook.get("timeoutSeconds") or 10,
        webhook.get("failurePolicy") == "Ignore",
        webhook.get("sideEffects") not in NO_SIDE_EFFECTS,
        webhook.get("reinvocationPolicy") == "IfNeeded",
        compile_conditions(webhook["matchConditions"]) if webhook.get("matchConditions") else None,
    )


WriteKind = tuple[str, Resource, str]
"""A kind of write: its operation, resource and subresource."""


class WebhookConfigurations:
    """The hooks of all configurations of one sort, in their order, and by the kinds of write that may concern them."""

    def __init__(self, store: Store, resource: str, registry: ResourceRegistry) -> None:
        self._store, self._resource, self._rows = store, resource, registry
        self.equivalents = EquivalentResources(registry)
        self._hooks: tuple[Webhook, ...] = ()
        self._webhooks_by_kind: dict[WriteKind, tuple[Webhook, ...]] = {}
        self._edition = -1
        store.on_change(resource, self._changed)
        self._load()

    @property
    def is_empty(self) -> bool:
        return not self._hooks

    def webhooks_for(self, kind: WriteKind, attributes: Callable[[], AdmissionAttributes]) -> tuple[Webhook, ...]:
        """The hooks with a rule for such writes; `attempt` is one of them, made only where that is not known yet."""
        if not self._hooks:
            return ()
        if self._edition != self._rows.generation:  # other versions may be served, and count as the same
            self._webhooks_by_kind.clear()
            self._edition = self._rows.generation
        found = self._webhooks_by_kind.get(kind)
        if found is None:
            one = attributes()
            found = () if one.is_exempt else tuple(hook for hook in self._hooks if self._has_rule(hook, one))
            self._webhooks_by_kind[kind] = found
        return found

    def _has_rule(self, hook: Webhook, attributes: AdmissionAttributes) -> bool:
        return hook.rule_criteria.matches(attributes, self.equivalents, no_labels) is not None

    def _changed(self, _: WatchEvent) -> None:
        self._load()

    def _load(self) -> None:
        found = [msgspec.json.decode(version.raw) for version in self._store.list_objects(self._resource)]
        in_order = sorted(found, key=name_of)
        self._hooks = tuple(hook for one in in_order for hook in compile_webhooks(one))
        self._webhooks_by_kind.clear()


def compile_webhooks(configuration: Object) -> Iterator[Webhook]:
    for webhook in configuration.get("webhooks") or ():
        try:
            yield compile_webhook(webhook)
        except (CompileError, SelectorError) as error:  # it was accepted once, by a server that understood it
            log.warning("webhook left out", configuration=name_of(configuration), webhook=webhook["name"], error=error)


def no_labels(_: str) -> Mapping[str, str]:
    return {}
