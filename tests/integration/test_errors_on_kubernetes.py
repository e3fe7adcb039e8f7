"""Classification of an API server's errors by the Status it sends."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.errors import (
    ApiError,
    ServerError,
    is_create_unauthorized,
    is_denied_by_policy,
    is_namespace_terminating,
    is_over_quota,
    is_priority_class_missing,
)
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS, RESOURCE_QUOTAS, Resource

POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False
)
POLICY_BINDINGS = replace(POLICIES, kind="ValidatingAdmissionPolicyBinding", plural="validatingadmissionpolicybindings")
WEBHOOKS = replace(POLICIES, kind="ValidatingWebhookConfiguration", plural="validatingwebhookconfigurations")
CONFIGMAP_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
CLASSES = (
    is_create_unauthorized,
    is_denied_by_policy,
    is_namespace_terminating,
    is_over_quota,
    is_priority_class_missing,
)


def new_pod(namespace: str, **spec: Any) -> Object:
    return {**object_named("x", namespace), "spec": {"containers": [{"name": "main", "image": "pause"}], **spec}}


async def rejection(client: Client, resource: Resource, obj: Object) -> ApiError:
    """Return the error of a creation once the API server rejects it."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.create(resource, obj)
            except ApiError as error:
                return error
            await client.delete(resource, obj, grace_seconds=0)


def classes_of(error: ApiError) -> list[Callable[[ApiError], bool]]:
    return [each for each in CLASSES if each(error)]


async def test_rejections_by_admission_are_distinguished(client: Client, namespace: str) -> None:
    missing = await rejection(client, PODS, new_pod(namespace, priorityClassName="no-such-class"))
    assert classes_of(missing) == [is_priority_class_missing]
    hard = {"hard": {"configmaps": "0"}}
    quota = await client.create(RESOURCE_QUOTAS, {**object_named("none", namespace), "spec": hard})
    counted = {"status": {**hard, "used": {"configmaps": "0"}}}  # as a controller does
    await client.patch(RESOURCE_QUOTAS, quota, counted, subresource="status")
    assert classes_of(await rejection(client, CONFIGMAPS, object_named("x", namespace))) == [is_over_quota]
    await client.delete(NAMESPACES, object_named(namespace))
    assert classes_of(await rejection(client, PODS, new_pod(namespace))) == [is_namespace_terminating]


async def test_rejection_by_the_authorizer_names_no_object(kubeconfig: Path, namespace: str) -> None:
    access = replace(load_access([kubeconfig], environ=os.environ), impersonation=(("Impersonate-User", "nobody"),))
    async with Client(HttpTransport(access)) as client:
        assert classes_of(await rejection(client, PODS, new_pod(namespace))) == [is_create_unauthorized]


@pytest.mark.parametrize("reason", ["Invalid", "Forbidden"])
async def test_denial_by_policy_has_a_cause(client: Client, namespace: str, reason: str) -> None:
    name = f"{namespace}-{reason.lower()}"
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    constraints = {"namespaceSelector": only_here, "resourceRules": [CONFIGMAP_RULE]}
    validations = [{"expression": "false", "message": "no", "reason": reason}]
    policy = {**object_named(name), "spec": {"matchConstraints": constraints, "validations": validations}}
    binding = {**object_named(name), "spec": {"policyName": name, "validationActions": ["Deny"]}}
    await client.create(POLICIES, policy)
    await client.create(POLICY_BINDINGS, binding)
    error = await rejection(client, CONFIGMAPS, object_named("x", namespace))
    assert (error.reason, classes_of(error)) == (reason, [is_denied_by_policy])


async def test_unreachable_webhook_is_an_internal_error(client: Client, namespace: str) -> None:
    webhook = {
        "name": "unreachable.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "rules": [CONFIGMAP_RULE],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await client.create(WEBHOOKS, {**object_named(namespace), "webhooks": [webhook]})
    error = await rejection(client, CONFIGMAPS, object_named("x", namespace))
    assert (type(error), error.reason, classes_of(error)) == (ServerError, "InternalError", [])
