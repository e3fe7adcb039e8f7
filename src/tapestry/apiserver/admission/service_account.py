"""ServiceAccount admission: the service account of a pod and the volume with its token."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import msgspec

from tapestry.apiserver.core.requests import WriteRequest, admission_forbidden
from tapestry.apiserver.core.spec_cache import memoized, memoized_and_interned, variant
from tapestry.apiserver.core.store import ObjectVersion, Store
from tapestry.kube.names import generated_suffix
from tapestry.kube.objects import Object, annotations_of
from tapestry.kube.pods import CREATION_CONTAINER_FIELDS, MIRROR_POD_ANNOTATION

ACCOUNT_TIMEOUT = 1.0
"""Seconds that a new pod waits for the default service account of its namespace."""
TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_VOLUME_PREFIX = "kube-api-access-"
"""Prefix of the names of token volumes."""
NAMESPACE_FIELD = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
TOKEN_PROJECTION = {
    "defaultMode": 420,
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": NAMESPACE_FIELD}]}},
    ],
}


@dataclass(frozen=True)
class ServiceAccountAdmission:
    """Set a pod's service account and mount its token unless the pod or the account opts out."""

    store: Store
    random: Random

    async def __call__(self, request: WriteRequest, _: Object | None, new: Object) -> Object:
        if request.verb != "create" or MIRROR_POD_ANNOTATION in annotations_of(new):
            return new
        spec = new["spec"]
        name = spec.get("serviceAccountName") or "default"
        version = await self.find_account(request.target.namespace, name)
        if version is None:
            reason = (
                f'error looking up service account {request.target.namespace}/{name}: serviceaccount "{name}" not found'
            )
            raise admission_forbidden(request, reason)
        account = decoded_account(version.raw)
        spec = with_account_name(spec, name)
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec = {**spec, "imagePullSecrets": account["imagePullSecrets"]}
        automount = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
        return {**new, "spec": with_token_volume(spec, self.random) if automount else spec}

    async def find_account(self, namespace: str, name: str) -> ObjectVersion | None:
        """Return the account. Wait for the default account, which is created shortly after its namespace."""
        account = self.store.get("serviceaccounts", namespace, name)
        if account is not None or name != "default":
            return account
        subscription = self.store.watch("serviceaccounts", namespace, name)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCOUNT_TIMEOUT):
                    await subscription.next_events()
        finally:
            self.store.unwatch("serviceaccounts", subscription)
        return self.store.get("serviceaccounts", namespace, name)


@lru_cache(maxsize=128)
def decoded_account(raw: bytes) -> Object:
    """Decode an account. The result is cached, because many pods share an account."""
    account: Object = msgspec.json.decode(raw)
    return account


@memoized_and_interned
def with_account_name(spec: Object, name: str) -> Object:
    return {**spec, "serviceAccountName": name, "serviceAccount": name}


def with_token_volume(spec: Object, random: Random) -> Object:
    """Return the spec with a token volume, mounted in all containers that have no token mount."""
    unmounted = unmounted_containers(spec)
    if not unmounted:
        return spec
    volumes = spec.get("volumes") or []
    names = [each["name"] for each in volumes if each["name"].startswith(TOKEN_VOLUME_PREFIX)]
    name = names[0] if names else TOKEN_VOLUME_PREFIX + generated_suffix(random.random())
    result = variant(spec, with_token_volume, name, len(unmounted) + (not names))
    result["volumes"] = volumes if names else [*volumes, {"name": name, "projected": TOKEN_PROJECTION}]
    mount = {"name": name, "readOnly": True, "mountPath": TOKEN_MOUNT_PATH}
    for field, number in unmounted:
        if result[field] is spec[field]:
            result[field] = [*spec[field]]
        container = spec[field][number]
        result[field][number] = {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), mount]}
    return result


@memoized
def unmounted_containers(spec: Object) -> Sequence[tuple[str, int]]:
    """The containers without a token mount, each as field and index."""
    return [
        (field, number)
        for field in CREATION_CONTAINER_FIELDS
        for number, each in enumerate(spec.get(field) or ())
        if not has_token_mount(each)
    ]


def has_token_mount(container: Object) -> bool:
    return any(each.get("mountPath") == TOKEN_MOUNT_PATH for each in container.get("volumeMounts") or ())
