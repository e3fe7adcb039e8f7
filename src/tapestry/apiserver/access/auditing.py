"""Audit logging: one `audit.k8s.io/v1` Event for each stage of a request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from random import getrandbits
from typing import Any

import msgspec
from prometheus_client import Counter

from tapestry.apiserver.access.audit_policy import LEVELS, AuditPolicy, AuditRule, Stage
from tapestry.apiserver.access.rbac import RbacAuthorizer
from tapestry.apiserver.core.codec import decode_body
from tapestry.apiserver.core.requests import Attributes, AuditedBody, Authorize, Call, Target, User, user_info
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, uid_from_bits
from tapestry.kube.times import micro_timestamp
from tapestry.process.audit import AuditLog

MAX_USER_AGENT_LENGTH = 1024
REQUEST_LEVEL, RESPONSE_LEVEL = LEVELS.index("Request"), LEVELS.index("RequestResponse")
STATUS_KIND = b'"kind":"Status"'
AUDIT_EVENTS = Counter("apiserver_audit_event_total", "Number of events written to the audit log.")


@dataclass(frozen=True)
class Auditor:
    """Select the requests to log, and write their events to the audit log."""

    policy: AuditPolicy
    log_file: AuditLog
    authorize: Authorize
    now: Callable[[], datetime]

    def begin(self, call: Call, attributes: Attributes) -> "AuditContext | None":
        """Start the audit of a new request; return None if the policy excludes it."""
        rule = self.policy.rule_for(attributes)
        if rule.level == "None":
            return None
        context = AuditContext(self, rule, call, attributes)
        context.log_stage("RequestReceived")
        return context


def audit_id(call: Call) -> str:
    """Return the Audit-Id header of the client, or a new ID."""
    return call.headers.get("audit-id", "")[:64] or uid_from_bits(getrandbits(128))


@dataclass(slots=True)
class AuditContext:
    """Audit state of one request."""

    auditor: Auditor
    rule: AuditRule
    call: Call
    attributes: Attributes
    id: str = ""
    received_at: str = ""
    impersonated_user: User | None = None
    """The impersonated user, if the impersonation is allowed."""
    request_body: AuditedBody = field(default_factory=AuditedBody)
    """The decoded body; unset for a request that was rejected before it was decoded."""

    def __post_init__(self) -> None:
        self.id = audit_id(self.call)
        self.received_at = micro_timestamp(self.auditor.now())

    def log_stage(self, stage: Stage, response: ApiResponse | None = None) -> None:
        if stage in self.rule.omit_stages:
            return
        event = self.event(stage, response)
        size = len(self.call.uri)
        if response is not None and LEVELS.index(self.rule.level) >= REQUEST_LEVEL:
            size += self.request_body.size + len(response.body)
        AUDIT_EVENTS.inc()
        self.auditor.log_file.record(event, size)

    def event(self, stage: Stage, response: ApiResponse | None) -> Object:
        call, target = self.call, self.attributes.target
        is_handled = stage != "RequestReceived"
        body = self.request_body.body if is_handled and target is not None else None
        result: Object = {
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
            "objectRef": object_reference(target, body) if target is not None else None,
            "responseStatus": response_status(response) if is_handled else None,
            **(self.body_fields(body, response) if is_handled and target is not None else {}),
            "requestReceivedTimestamp": self.received_at,
            "stageTimestamp": micro_timestamp(self.auditor.now()),
            "annotations": {**self.authorization_annotations(), **call.audit_annotations}
            if is_handled and (self.impersonated_user or not call.impersonation_headers)
            else None,
        }
        return {key: value for key, value in result.items() if value not in (None, "", [])}

    def body_fields(self, body: Any, response: ApiResponse | None) -> Object:
        """Return the request and response bodies that the level of the rule includes."""
        level, result = LEVELS.index(self.rule.level), {}
        if level >= REQUEST_LEVEL:
            result["requestObject"] = self.filtered_body(body)
        if level >= RESPONSE_LEVEL and response is not None:
            result["responseObject"] = self.filtered_body(decode_or_none(response.body, response.content_type))
        return result

    def filtered_body(self, body: Any) -> Any:
        if not self.rule.omit_managed_fields or not isinstance(body, dict):
            return body
        items = body.get("items")
        result = without_managed_fields(body)
        return (
            {**result, "items": [without_managed_fields(each) for each in items]} if isinstance(items, list) else result
        )

    def authorization_annotations(self) -> Object:
        """Return the authorization decision, which is evaluated again because that is cheap."""
        attrs = self.attributes
        if self.impersonated_user is not None:
            attrs = Attributes(self.impersonated_user, attrs.verb, attrs.target, attrs.path)
        authorize = self.auditor.authorize
        reason = (
            authorize.allow_reason(attrs) if isinstance(authorize, RbacAuthorizer) else "" if authorize(attrs) else None
        )
        decision = "forbid" if reason is None else "allow"
        return {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason or ""}


def without_managed_fields(obj: Any) -> Any:
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def decode_or_none(body: bytes, content_type: str) -> Any:
    """Return a body as data, or None if it is empty or malformed."""
    try:
        return decode_body(body, content_type)
    except ApiError:
        return None


def object_reference(target: Target, body: Any) -> Object:
    """Return the reference to the target; the name of a new object is in the body."""
    resource = target.info.resource
    metadata = body.get("metadata") if isinstance(body, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    result = {
        "resource": resource.plural,
        "namespace": target.namespace,
        "name": target.name or name,
        "apiGroup": resource.group,
        "apiVersion": resource.version,
        "subresource": target.subresource,
    }
    return {key: value for key, value in result.items() if value}


def response_status(response: ApiResponse | None) -> Object:
    """Return the status of the response; 200 for a watch."""
    if response is None:
        return {"metadata": {}, "code": 200}
    result: Any = msgspec.json.decode(response.body) if STATUS_KIND in response.body[:200] else None
    if isinstance(result, dict) and result.get("kind") == "Status":
        fields = ("metadata", "status", "message", "reason", "details")
        return {**{key: result[key] for key in fields if result.get(key) or key == "metadata"}, "code": response.status}
    return {"metadata": {}, "code": response.status}


def source_ips(call: Call) -> list[str]:
    """Return the client addresses; all but the last are claims of the client."""
    claimed = [each.strip() for each in call.headers.get("x-forwarded-for", "").split(",") if each.strip()]
    real = call.headers.get("x-real-ip", "").strip()
    result = claimed + ([real] if real and real not in claimed else [])
    return result + ([call.source_ip] if call.source_ip and result[-1:] != [call.source_ip] else [])
