"""Auditing: who asked for what and what came of it, one `audit.k8s.io/v1` Event for each stage of a request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from random import getrandbits
from typing import Any

import msgspec

from tapestry.apiserver.access.audit_policy import LEVELS, AuditPolicy, AuditRule, Stage
from tapestry.apiserver.access.rbac import RbacAuthorizer
from tapestry.apiserver.access.reviews import user_info
from tapestry.apiserver.codec import decode_body
from tapestry.apiserver.requests import AuditedBody, Call, Target, User
from tapestry.apiserver.server import ApiResponse, Attributes, Authorize
from tapestry.apiserver.serving.metrics import AUDIT_EVENTS
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, uid_from_bits
from tapestry.kube.times import micro_timestamp
from tapestry.process.audit import AuditLog

MAX_USER_AGENT_LENGTH = 1024
REQUEST_LEVEL, RESPONSE_LEVEL = LEVELS.index("Request"), LEVELS.index("RequestResponse")
STATUS_KIND = b'"kind":"Status"'


@dataclass(frozen=True)
class Auditor:
    """Decides what is written down, and hands it to the file."""

    policy: AuditPolicy
    log_file: AuditLog
    authorize: Authorize
    now: Callable[[], datetime]

    def begin(self, call: Call, attributes: Attributes) -> "AuditContext | None":
        """The trail of a request that has just come; None where it leaves none."""
        rule = self.policy.rule_for(attributes)
        if rule.level == "None":
            return None
        trail = AuditContext(self, rule, call, attributes)
        trail.log_stage("RequestReceived")
        return trail


def audit_id(call: Call) -> str:
    """By what a request is known: what its client calls it, or a name of its own."""
    return call.headers.get("audit-id", "")[:64] or uid_from_bits(getrandbits(128))


@dataclass(slots=True)
class AuditContext:
    """What is written down of one request."""

    auditor: Auditor
    rule: AuditRule
    call: Call
    attributes: Attributes
    id: str = ""
    received_at: str = ""
    impersonated_user: User | None = None
    """In whose name it is made, where that is somebody else and allowed."""
    request_body: AuditedBody = field(default_factory=AuditedBody)
    """What the server has decoded of the body: nothing of a request that was refused before."""

    def __post_init__(self) -> None:
        self.id = audit_id(self.call)
        self.received_at = micro_timestamp(self.auditor.now())

    def log_stage(self, stage: Stage, response: ApiResponse | None = None) -> None:
        if stage in self.rule.omit_stages:
            return
        event = self.event(stage, response)
        size = self.request_body.size + len(response.body) if response is not None else 0
        AUDIT_EVENTS.inc()
        self.auditor.log_file.record(event, size if LEVELS.index(self.rule.level) >= REQUEST_LEVEL else 0)

    def event(self, stage: Stage, response: ApiResponse | None) -> Object:
        call, target = self.call, self.attributes.target
        is_over = stage != "RequestReceived"
        sent = self.request_body.body if is_over and target is not None else None
        found: Object = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": self.rule.level,
            "auditID": self.id,
            "stage": stage,
            "requestURI": call.uri or call.path,
            "verb": self.attributes.verb,
            "user": user_info(call.user),
            "impersonatedUser": user_info(self.impersonated_user) if self.impersonated_user is not None else None,
            "sourceIPs": source_ips(call),
            "userAgent": call.headers.get("user-agent", "")[:MAX_USER_AGENT_LENGTH],
            "objectRef": object_reference(target, sent) if target is not None else None,
            "responseStatus": response_status(response) if is_over else None,
            **(self.body_fields(sent, response) if is_over and target is not None else {}),
            "requestReceivedTimestamp": self.received_at,
            "stageTimestamp": micro_timestamp(self.auditor.now()),
            "annotations": {**self.authorization_annotations(), **call.audit_annotations}
            if is_over and (self.impersonated_user or not call.impersonation_headers)
            else None,
        }
        return {key: value for key, value in found.items() if value not in (None, "", [])}

    def body_fields(self, body: Any, response: ApiResponse | None) -> Object:
        """As much of both as the rule wants to have."""
        level, found = LEVELS.index(self.rule.level), {}
        if level >= REQUEST_LEVEL:
            found["requestObject"] = self.filtered_body(body)
        if level >= RESPONSE_LEVEL and response is not None:
            found["responseObject"] = self.filtered_body(decode_or_none(response.body, response.content_type))
        return found

    def filtered_body(self, body: Any) -> Any:
        if not self.rule.omit_managed_fields or not isinstance(body, dict):
            return body
        items = body.get("items")
        found = without_managed_fields(body)
        return (
            {**found, "items": [without_managed_fields(each) for each in items]} if isinstance(items, list) else found
        )

    def authorization_annotations(self) -> Object:
        """Asked again for whoever reads this: rights are looked up, and cost next to nothing."""
        asked = self.attributes
        if self.impersonated_user is not None:
            asked = Attributes(self.impersonated_user, asked.verb, asked.target, asked.path)
        authorize = self.auditor.authorize
        reason = (
            authorize.allow_reason(asked) if isinstance(authorize, RbacAuthorizer) else "" if authorize(asked) else None
        )
        decision = "forbid" if reason is None else "allow"
        return {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason or ""}


def without_managed_fields(obj: Any) -> Any:
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def decode_or_none(body: bytes, content_type: str) -> Any:
    """A body as data; None where there is none, or it cannot be read."""
    try:
        return decode_body(body, content_type)
    except ApiError:
        return None


def object_reference(target: Target, body: Any) -> Object:
    """What a request is about; the name of a new object is in what was sent."""
    resource = target.info.resource
    metadata = body.get("metadata") if isinstance(body, dict) else None
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


def response_status(response: ApiResponse | None) -> Object:
    """What is known of how it went; of a watch, that it was granted."""
    if response is None:
        return {"metadata": {}, "code": 200}
    found: Any = msgspec.json.decode(response.body) if STATUS_KIND in response.body[:200] else None
    if isinstance(found, dict) and found.get("kind") == "Status":
        kept = ("metadata", "status", "message", "reason", "details")
        return {**{key: found[key] for key in kept if found.get(key) or key == "metadata"}, "code": response.status}
    return {"metadata": {}, "code": response.status}


def source_ips(call: Call) -> list[str]:
    """Where it came from; all but the last is what the sender says."""
    claimed = [each.strip() for each in call.headers.get("x-forwarded-for", "").split(",") if each.strip()]
    real = call.headers.get("x-real-ip", "").strip()
    found = claimed + ([real] if real and real not in claimed else [])
    return found + ([call.source_ip] if call.source_ip and found[-1:] != [call.source_ip] else [])
