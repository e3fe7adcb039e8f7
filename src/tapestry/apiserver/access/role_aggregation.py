"""Rules of ClusterRoles that have an aggregation rule. Pure."""

from collections.abc import Iterable
from typing import Any

from tapestry.kube.objects import Object, labels_of, name_of
from tapestry.kube.selectors import label_selector


def aggregated_rules(role: Object, roles: Iterable[Object]) -> list[Any]:
    """Return the desired rules of `role`, without duplicates: in order of its selectors, then of role names."""
    others = sorted((each for each in roles if name_of(each) != name_of(role)), key=name_of)
    found: list[Any] = []
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
        matches = label_selector(selector).matches
        for other in others:
            if matches(labels_of(other)):
                found += [rule for rule in other.get("rules") or () if rule not in found]
    return found
