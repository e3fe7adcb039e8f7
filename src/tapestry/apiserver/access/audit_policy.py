"""The audit policy: how much is written down of which requests (`audit.k8s.io/v1`, kind Policy).

The first rule that fits a request decides; where none does, nothing is written.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from tapestry.apiserver.server import Attributes

Level = Literal["None", "Metadata", "Request", "RequestResponse"]
Stage = Literal["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"]
LEVELS: tuple[Level, ...] = ("None", "Metadata", "Request", "RequestResponse")


class Resources(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Some resources of one group; all of them where none are named."""

    group: str = ""
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()

    def fit(self, asked: Attributes) -> bool:
        target = asked.target
        if target is None or target.row.resource.group != self.group:
            return False
        if not self.resources:
            return True
        if self.resource_names and target.name not in self.resource_names:
            return False
        plural, subresource = target.row.resource.plural, target.subresource
        known = {"*", f"{plural}/*", f"{plural}/{subresource}" if subresource else plural}
        known |= {f"*/{subresource}"} if subresource else set()
        return not known.isdisjoint(self.resources)


class Rule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    level: Level
    users: tuple[str, ...] = ()
    user_groups: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resources: tuple[Resources, ...] = ()
    namespaces: tuple[str, ...] = ()
    """An empty name is that of what has no namespace."""
    paths: tuple[str, ...] = msgspec.field(name="nonResourceURLs", default=())
    omit_stages: tuple[Stage, ...] = ()
    omit_managed_fields: bool | None = None

    def fits(self, asked: Attributes) -> bool:
        if self.users and asked.user.name not in self.users:
            return False
        if self.user_groups and set(self.user_groups).isdisjoint(asked.user.groups):
            return False
        if self.verbs and asked.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            return self.fits_resource(asked)
        return not self.paths or (asked.target is None and any(covers(each, asked.path) for each in self.paths))

    def fits_resource(self, asked: Attributes) -> bool:
        if asked.target is None or (self.namespaces and asked.target.namespace not in self.namespaces):
            return False
        return not self.resources or any(each.fit(asked) for each in self.resources)


class Policy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: Literal["audit.k8s.io/v1"]
    kind: Literal["Policy"]
    rules: tuple[Rule, ...]
    omit_stages: tuple[Stage, ...] = ()
    omit_managed_fields: bool = False
    metadata: Any = None

    def verdict(self, asked: Attributes) -> Rule:
        """How a request is to be written down: a rule with everything in it that the policy says for all."""
        found = next((rule for rule in self.rules if rule.fits(asked)), NOTHING)
        omits = self.omit_managed_fields if found.omit_managed_fields is None else found.omit_managed_fields
        stages = (*self.omit_stages, *found.omit_stages)
        return Rule(found.level, omit_stages=stages, omit_managed_fields=omits)


NOTHING = Rule("None")
WHO_DID_WHAT = Policy("audit.k8s.io/v1", "Policy", (Rule("Metadata"),))
"""Where no policy is given: every request, and nothing of what is in it, for Secrets and tokens are."""


def covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern.rstrip("*")) if pattern.endswith("*") else pattern == path


def policy_in(path: Path) -> Policy:
    """The policy of a YAML file; raises ValueError with what is wrong and where."""
    try:
        found = msgspec.convert(yaml.safe_load(path.read_text()), Policy)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    for number, rule in enumerate(found.rules):
        if rule.paths and (rule.resources or rule.namespaces):
            raise ValueError(
                f"{path}: rules[{number}]: nonResourceURLs: rules cannot apply to both resources and paths"
            )
    return found
