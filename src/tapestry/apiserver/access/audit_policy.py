"""Audit policy: the level at which each request is logged (`audit.k8s.io/v1`, kind Policy).

The first matching rule applies. A request that matches no rule is not logged.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from tapestry.apiserver.core.requests import Attributes

Level = Literal["None", "Metadata", "Request", "RequestResponse"]
Stage = Literal["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"]
LEVELS: tuple[Level, ...] = ("None", "Metadata", "Request", "RequestResponse")


class GroupResources(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Resources of one group; all of them if none are named."""

    group: str = ""
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()

    def matches(self, attributes: Attributes) -> bool:
        target = attributes.target
        if target is None or target.info.resource.group != self.group:
            return False
        if not self.resources:
            return True
        if self.resource_names and target.name not in self.resource_names:
            return False
        plural, subresource = target.info.resource.plural, target.subresource
        patterns = {"*", f"{plural}/*", f"{plural}/{subresource}" if subresource else plural}
        patterns |= {f"*/{subresource}"} if subresource else set()
        return not patterns.isdisjoint(self.resources)


class AuditRule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    level: Level
    users: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resources: tuple[GroupResources, ...] = ()
    namespaces: tuple[str, ...] = ()
    """Namespaces; an empty name matches objects without a namespace."""
    paths: tuple[str, ...] = msgspec.field(name="nonResourceURLs", default=())
    omit_stages: tuple[Stage, ...] = ()
    omit_managed_fields: bool | None = None

    def matches(self, attributes: Attributes) -> bool:
        if self.users and attributes.user.name not in self.users:
            return False
        if self.user_groups and set(self.user_groups).isdisjoint(attributes.user.groups):
            return False
        if self.verbs and attributes.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            return self.matches_resource(attributes)
        return not self.paths or (
            attributes.target is None and any(matches_path(each, attributes.path) for each in self.paths)
        )

    def matches_resource(self, attributes: Attributes) -> bool:
        if attributes.target is None or (self.namespaces and attributes.target.namespace not in self.namespaces):
            return False
        return not self.resources or any(each.matches(attributes) for each in self.resources)


class AuditPolicy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: Literal["audit.k8s.io/v1"]
    kind: Literal["Policy"]
    rules: tuple[AuditRule, ...]
    omit_stages: tuple[Stage, ...] = ()
    omit_managed_fields: bool = False
    metadata: Any = None

    def rule_for(self, attributes: Attributes) -> AuditRule:
        """Return the rule for a request, merged with the defaults of the policy."""
        result = next((each for each in self.rules if each.matches(attributes)), NO_AUDIT)
        omits = self.omit_managed_fields if result.omit_managed_fields is None else result.omit_managed_fields
        stages = (*self.omit_stages, *result.omit_stages)
        return AuditRule(result.level, omit_stages=stages, omit_managed_fields=omits)


NO_AUDIT = AuditRule("None")
METADATA_POLICY = AuditPolicy("audit.k8s.io/v1", "Policy", (AuditRule("Metadata"),))
"""Default policy: logs all requests without bodies, which may contain Secrets and tokens."""


def matches_path(pattern: str, path: str) -> bool:
    return path.startswith(pattern.rstrip("*")) if pattern.endswith("*") else pattern == path


def load_policy(path: Path) -> AuditPolicy:
    """Load a policy from a YAML file. Raises ValueError with the position of the error."""
    try:
        policy = msgspec.convert(yaml.safe_load(path.read_text()), AuditPolicy)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    for number, rule in enumerate(policy.rules):
        if rule.paths and (rule.resources or rule.namespaces):
            raise ValueError(
                f"{path}: rules[{number}]: nonResourceURLs: rules cannot apply to both resources and paths"
            )
    return policy
