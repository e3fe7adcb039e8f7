"""References of a pod to ConfigMaps, Secrets, claims and service account tokens.

This module knows every field of a pod spec that can name one of them. Specs are untrusted: a value of the wrong type
names nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.pods import CONTAINER_FIELDS


class ReferenceKind(StrEnum):
    """Resources that a pod may refer to."""

    CONFIG_MAP = "configmaps"
    SECRET = "secrets"
    CLAIM = "persistentvolumeclaims"


@dataclass(frozen=True, slots=True)
class Reference:
    kind: ReferenceKind
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ProjectedToken:
    """A service account token that a pod mounts."""

    key: str
    """Key of the token in the pod's Secret in the physical cluster."""
    audience: str
    seconds: int


SECRET_FIELDS = {
    "azureFile": ("secretName",),
    "cephfs": ("secretRef", "name"),
    "cinder": ("secretRef", "name"),
    "csi": ("nodePublishSecretRef", "name"),
    "flexVolume": ("secretRef", "name"),
    "iscsi": ("secretRef", "name"),
    "rbd": ("secretRef", "name"),
    "scaleIO": ("secretRef", "name"),
    "storageos": ("secretRef", "name"),
}
"""Path of the Secret's name in volume sources other than `secret`; only privileged pods may use them."""

CSI_SECRET_FIELDS = (
    *("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef"),
    *("controllerExpandSecretRef", "nodeExpandSecretRef"),
)
"""Fields of a CSI source that name a Secret by namespace and name."""

ENV_SOURCES = {"configMapKeyRef": ReferenceKind.CONFIG_MAP, "secretKeyRef": ReferenceKind.SECRET}
ENV_FROM_SOURCES = {"configMapRef": ReferenceKind.CONFIG_MAP, "secretRef": ReferenceKind.SECRET}
PROJECTIONS = {"configMap": ReferenceKind.CONFIG_MAP, "secret": ReferenceKind.SECRET}


def objects_at(whole: Object, field: str) -> list[Object]:
    items = whole.get(field)
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def object_at(whole: Object, field: str) -> Object:
    """Return the object in a field; empty if there is none."""
    value = whole.get(field)
    return value if isinstance(value, dict) else {}


def references(pod: Object) -> Iterator[Reference]:
    """Yield everything in the pod's namespace that must exist for it to run; the same reference may occur twice."""
    spec = pod["spec"]
    for volume in objects_at(spec, "volumes"):
        yield from volume_references(volume, pod)
    for field in CONTAINER_FIELDS:
        for container in objects_at(spec, field):
            for each in objects_at(container, "envFrom"):
                yield from named_references(each, ENV_FROM_SOURCES)
            for each in objects_at(container, "env"):
                yield from named_references(object_at(each, "valueFrom"), ENV_SOURCES)
    for secret in objects_at(spec, "imagePullSecrets"):
        if secret.get("name"):
            yield Reference(ReferenceKind.SECRET, secret["name"], optional=True)


def volume_references(volume: Object, pod: Object) -> Iterator[Reference]:
    yield from named_references(volume, {"configMap": ReferenceKind.CONFIG_MAP})
    if claim := claim_name(volume, pod):
        yield Reference(ReferenceKind.CLAIM, claim)
    for each in objects_at(object_at(volume, "projected"), "sources"):
        yield from named_references(each, PROJECTIONS)
    if source := object_at(volume, "secret"):
        yield Reference(ReferenceKind.SECRET, source.get("secretName") or "", bool(source.get("optional")))
    for kind, path in SECRET_FIELDS.items():
        if name := secret_name_at(object_at(volume, kind), path):
            yield Reference(ReferenceKind.SECRET, name)


def claim_name(volume: Object, pod: Object) -> str | None:
    """Return the name of the claim that a volume mounts. That of an ephemeral volume is created for the pod."""
    if is_ephemeral(volume):
        return f"{name_of(pod)}-{volume.get('name')}"
    return object_at(volume, "persistentVolumeClaim").get("claimName")


def is_ephemeral(volume: Object) -> bool:
    return bool(object_at(volume, "ephemeral"))


def named_references(source: Object, kinds: dict[str, ReferenceKind]) -> Iterator[Reference]:
    for field, kind in kinds.items():
        if reference := object_at(source, field):
            yield Reference(kind, reference.get("name") or "", bool(reference.get("optional")))


def secret_name_at(source: Object, path: tuple[str, ...]) -> str | None:
    value: object = source
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def projected_tokens(spec: Object) -> list[ProjectedToken]:
    """Return the service account tokens that the pod's projected volumes request."""
    return [
        ProjectedToken(token_key(volume, number), source.get("audience") or "", source.get("expirationSeconds") or 3600)
        for volume in objects_at(spec, "volumes")
        for number, each in enumerate(objects_at(object_at(volume, "projected"), "sources"))
        if (source := each.get("serviceAccountToken")) is not None
    ]


def token_key(volume: Object, number: int) -> str:
    return f"{volume['name']}.{number}"


def secrets_of(volume: Object) -> list[str]:
    """Return the names of the Secrets that the volume needs; they are in the claim's namespace unless rejected."""
    csi = value_at(volume, "spec", "csi", default={})
    return sorted({csi[field]["name"] for field in CSI_SECRET_FIELDS if csi.get(field)})
