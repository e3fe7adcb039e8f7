"""Auditing: who asked for what and what came of it, one `audit.k8s.io/v1` Event for each stage of a request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from random import getrandbits
from typing import Any

import msgspec

from tapestry.apiserver.access.audit_policy import LEVELS, Policy, Rule, Stage
from tapestry.apiserver.access.rbac import Authorizer
from tapestry.apiserver.access.reviews import user_info
from tapestry.apiserver.codec import decoded
from tapestry.apiserver.requests import Call, Record, Target, User
from tapestry.apiserver.server import Answer, Attributes, Authorize
from tapestry.apiserver.serving.metrics import AUDITED
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, uid_from
from tapestry.kube.times import micro_timestamp
from tapestry.process.audit import Audit

LONGEST_AGENT = 1024
REQUEST, RESPONSE = LEVELS.index("Request"), LEVELS.index("RequestResponse")
STATUS = b'"kind":"Status"'


@dataclass(frozen=True)
class Auditor:
    """Decides what is written down, and hands it to the file."""

    policy: Policy
    file: Audit
    authorize: Authorize
    now: Callable[[], datetime]

    def begun(self, call: Call, asked: Attributes) -> "Trail | None":
        """The trail of a request that has just come; None where it leaves none."""
        rule = self.policy.verdict(asked)
        if rule.level == "None":
            return None
        trail = Trail(self, rule, call, asked)
        trail.note("RequestReceived")
        return trail


def audit_id(call: Call) -> str:
    """By what a request is known: what its client calls it, or a name of its own."""
    return call.headers.get("audit-id", "")[:64] or uid_from(getrandbits(128))


@dataclass(slots=True)
class Trail:
    """What is written down of one request."""

    auditor: Auditor
    rule: Rule
    call: Call
    asked: Attributes
    id: str = ""
    began: str = ""
    user: User | None = None
    """In whose name it is made, where that is somebody else and allowed."""
    record: Record = field(default_factory=Record)
    """What the server has decoded of the body: nothing of a request that was refused before."""

    def __post_init__(self) -> None:
        self.id = audit_id(self.call)
        self.began = micro_timestamp(self.auditor.now())

    def note(self, stage: Stage, answer: Answer | None = None) -> None:
        if stage in self.rule.omit_stages:
            return
        event = self.event(stage, answer)
        size = self.record.size + len(answer.body) if answer is not None else 0
        AUDITED.inc()
        self.auditor.file.record(event, size if LEVELS.index(self.rule.level) >= REQUEST else 0)

    def event(self, stage: Stage, answer: Answer | None) -> Object:
        call, target = self.call, self.asked.target
        is_over = stage != "RequestReceived"
        sent = self.record.sent if is_over and target is not None else None
        found: Object = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": self.rule.level,
            "auditID": self.id,
            "stage": stage,
            "requestURI": call.uri or call.path,
            "verb": self.asked.verb,
            "user": user_info(call.user),
            "impersonatedUser": user_info(self.user) if self.user is not None else None,
            "sourceIPs": sources(call),
            "userAgent": call.headers.get("user-agent", "")[:LONGEST_AGENT],
            "objectRef": reference(target, sent) if target is not None else None,
            "responseStatus": status_of(answer) if is_over else None,
            **(self.bodies(sent, answer) if is_over and target is not None else {}),
            "requestReceivedTimestamp": self.began,
            "stageTimestamp": micro_timestamp(self.auditor.now()),
            "annotations": {**self.decision(), **call.notes}
            if is_over and (self.user or not call.impersonates)
            else None,
        }
        return {key: value for key, value in found.items() if value not in (None, "", [])}

    def bodies(self, sent: Any, answer: Answer | None) -> Object:
        """As much of both as the rule wants to have."""
        level, found = LEVELS.index(self.rule.level), {}
        if level >= REQUEST:
            found["requestObject"] = self.shown(sent)
        if level >= RESPONSE and answer is not None:
            found["responseObject"] = self.shown(read(answer.body, answer.content_type))
        return found

    def shown(self, body: Any) -> Any:
        if not self.rule.omit_managed_fields or not isinstance(body, dict):
            return body
        items = body.get("items")
        found = unmanaged(body)
        return {**found, "items": [unmanaged(each) for each in items]} if isinstance(items, list) else found

    def decision(self) -> Object:
        """Asked again for whoever reads this: rights are looked up, and cost next to nothing."""
        asked = self.asked
        if self.user is not None:
            asked = Attributes(self.user, asked.verb, asked.target, asked.path)
        authorize = self.auditor.authorize
        reason = authorize.reason(asked) if isinstance(authorize, Authorizer) else "" if authorize(asked) else None
        decision = "forbid" if reason is None else "allow"
        return {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason or ""}


def unmanaged(obj: Any) -> Any:
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def read(body: bytes, content_type: str) -> Any:
    """A body as data; None where there is none, or it cannot be read."""
    try:
        return decoded(body, content_type)
    except ApiError:
        return None


def reference(target: Target, sent: Any) -> Object:
    """What a request is about; the name of a new object is in what was sent."""
    resource = target.row.resource
    metadata = sent.get("metadata") if isinstance(sent, dict) else None
    named = metadata.get("name") if isinstance(metadata, dict) else ""
    found = {
        "resource": resource.plural,
        "namespace": target.namespace,
        "name": target.name or named,
        "apiGroup": resource.group,
        "apiVersion": resource.version,
        "subresource": target.subresource,
    }
    return {key: value for key, value in found.items() if value}


def status_of(answer: Answer | None) -> Object:
    """What is known of how it went; of a watch, that it was granted."""
    if answer is None:
        return {"metadata": {}, "code": 200}
    found: Any = msgspec.json.decode(answer.body) if STATUS in answer.body[:200] else None
    if isinstance(found, dict) and found.get("kind") == "Status":
        kept = ("metadata", "status", "message", "reason", "details")
        return {**{key: found[key] for key in kept if found.get(key) or key == "metadata"}, "code": answer.status}
    return {"metadata": {}, "code": answer.status}


def sources(call: Call) -> list[str]:
    """Where it came from; all but the last is what the sender says."""
    claimed = [each.strip() for each in call.headers.get("x-forwarded-for", "").split(",") if each.strip()]
    real = call.headers.get("x-real-ip", "").strip()
    found = claimed + ([real] if real and real not in claimed else [])
    return found + ([call.source] if call.source and found[-1:] != [call.source] else [])
