"""Webhook configurations, compiled on change and indexed by kind of write."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.admission.matching import (
    GROUP,
    AdmissionAttributes,
    EquivalentResources,
    MatchCriteria,
    webhook_criteria,
)
from tapestry.apiserver.core.match_conditions import MatchConditions, compile_conditions
from tapestry.apiserver.core.resource_registry import ResourceRegistry
from tapestry.apiserver.core.store import Store, WatchEvent
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
    """The criteria without selectors, which are the same for all writes of a kind."""
    review_versions: tuple[str, ...]
    """Versions of AdmissionReview that the webhook supports."""
    timeout_seconds: int
    fails_open: bool
    has_side_effects: bool
    is_reinvocable: bool
    conditions: MatchConditions | None


def compile_webhook(webhook: Object) -> Webhook:
    """Compile a configuration, or raise CompileError or SelectorError."""
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
"""Operation, resource and subresource of a write."""


class WebhookConfigurations:
    """The webhooks of all mutating or all validating configurations, in order, indexed by kind of write."""

    def __init__(self, store: Store, resource: str, registry: ResourceRegistry) -> None:
        self._store, self._resource, self._registry = store, resource, registry
        self.equivalents = EquivalentResources(registry)
        self._webhooks: tuple[Webhook, ...] = ()
        self._webhooks_by_kind: dict[WriteKind, tuple[Webhook, ...]] = {}
        self._generation = -1
        store.on_change(resource, self._changed)
        self._load()

    @property
    def is_empty(self) -> bool:
        return not self._webhooks

    def webhooks_for(self, kind: WriteKind, attributes: Callable[[], AdmissionAttributes]) -> tuple[Webhook, ...]:
        """The webhooks with a rule for a kind of write; `attributes` is called on a cache miss."""
        if not self._webhooks:
            return ()
        if self._generation != self._registry.generation:  # other versions may be served, which count as equivalent
            self._webhooks_by_kind.clear()
            self._generation = self._registry.generation
        matching = self._webhooks_by_kind.get(kind)
        if matching is None:
            example = attributes()
            matching = (
                () if example.is_exempt else tuple(each for each in self._webhooks if self._has_rule(each, example))
            )
            self._webhooks_by_kind[kind] = matching
        return matching

    def _has_rule(self, webhook: Webhook, attributes: AdmissionAttributes) -> bool:
        return webhook.rule_criteria.matches(attributes, self.equivalents, no_labels) is not None

    def _changed(self, _: WatchEvent) -> None:
        self._load()

    def _load(self) -> None:
        configurations = [msgspec.json.decode(version.raw) for version in self._store.list_objects(self._resource)]
        in_order = sorted(configurations, key=name_of)
        self._webhooks = tuple(webhook for configuration in in_order for webhook in compile_webhooks(configuration))
        self._webhooks_by_kind.clear()


def compile_webhooks(configuration: Object) -> Iterator[Webhook]:
    for webhook in configuration.get("webhooks") or ():
        try:
            yield compile_webhook(webhook)
        except (CompileError, SelectorError) as error:  # a newer server may have accepted it
            log.warning(
                "invalid webhook ignored", configuration=name_of(configuration), webhook=webhook["name"], error=error
            )


def no_labels(_: str) -> Mapping[str, str]:
    return {}
