"""Conversion of custom resources between versions by the webhook of their definition.

A webhook may change everything except the metadata, of which it may only change labels and annotations. The identity of
an object must stay the same. A list is converted in one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from tapestry.apiserver.core import metadata as rules
from tapestry.apiserver.core.outgoing_http import WebhookCallError, WebhookClient
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.storage_versions import STORAGE_VERSIONS
from tapestry.apiserver.customresources.definitions import Definitions
from tapestry.kube.errors import ServerError
from tapestry.kube.objects import Object

GROUP, KIND = "apiextensions.k8s.io", "ConversionReview"
REVIEW_VERSIONS = ("v1", "v1beta1")
WEBHOOK_TIMEOUT_SECONDS = 30
IDENTITY_FIELDS = {"name": "name", "namespace": "namespace", "uid": "UID"}
MUTABLE_METADATA = {"labels": rules.validate_labels, "annotations": rules.validate_annotations}


class ConversionError(ValueError):
    """Error if a webhook's response does not match the request."""


class WrongKind(ConversionError):
    """Error if a converted object has the wrong kind or version."""


@dataclass(frozen=True)
class Converter:
    """Convert objects as their definitions specify."""

    webhook_client: WebhookClient
    definitions: Definitions

    async def __call__(self, info: ResourceInfo, objects: Sequence[Object], api_version: str) -> Sequence[Object]:
        """Return the objects in `api_version`, in order. Raises ServerError."""
        if not info.conversion_webhook:
            return [converted_built_in(obj, api_version) for obj in objects]
        sent = [obj for obj in objects if obj["apiVersion"] != api_version]
        if not sent:
            return objects
        subject = f"conversion webhook for {sent[0]['apiVersion']}, Kind={info.resource.kind}"
        try:
            returned = await self._call_webhook(info.conversion_webhook, sent, api_version)
        except (WebhookCallError, ConversionError) as error:
            raise conversion_failure(f"{subject} failed: {error}") from error
        if len(returned) != len(sent):
            raise conversion_failure(f"{subject} returned {len(returned)} objects, expected {len(sent)}")
        converted = []
        for number, (old, new) in enumerate(zip(sent, returned, strict=True)):
            try:
                converted.append(self._pruned(info, with_original_metadata(old, new, api_version), api_version))
            except ConversionError as error:
                raise conversion_failure(
                    f"{subject} returned invalid {object_description(number, len(sent), error)}: {error}"
                ) from error
        remaining = iter(converted)
        return [obj if obj["apiVersion"] == api_version else next(remaining) for obj in objects]

    def _pruned(self, info: ResourceInfo, obj: Object, api_version: str) -> Object:
        """Remove fields that the version's schema does not have. Objects of an unserved version are unchanged."""
        version = api_version.rpartition("/")[2]
        schema = self.definitions.schemas.get((info.resource.group, version, info.resource.plural))
        if schema is None:
            return obj
        pruned = schema.node.prune_and_default({key: value for key, value in obj.items() if key != "metadata"}, "", [])
        return {"apiVersion": api_version, "kind": obj["kind"], **pruned, "metadata": obj["metadata"]}

    async def _call_webhook(self, webhook: Object, objects: Sequence[Object], api_version: str) -> list[Any]:
        version = next(
            (each for each in webhook.get("conversionReviewVersions") or () if each in REVIEW_VERSIONS), None
        )
        if version is None:
            raise ConversionError("no supported conversion review versions")
        uid = str(uuid4())
        request = {"uid": uid, "desiredAPIVersion": api_version, "objects": objects}
        review = {"kind": KIND, "apiVersion": f"{GROUP}/{version}", "request": request}
        raw = await self.webhook_client.post(
            webhook["clientConfig"], msgspec.json.encode(review), WEBHOOK_TIMEOUT_SECONDS
        )
        return conversion_result(raw, version, uid)


def converted_built_in(obj: Object, api_version: str) -> Object:
    """Convert an object of a built-in kind. For most kinds, only the apiVersion changes."""
    source, target = STORAGE_VERSIONS.get(obj["apiVersion"]), STORAGE_VERSIONS.get(api_version)
    stored = source.to_storage(obj) if source is not None else obj
    return {**(target.from_storage(stored) if target is not None else stored), "apiVersion": api_version}


# -- responses


class _Result(msgspec.Struct, frozen=True):
    status: str = ""
    message: str = ""


class _Response(msgspec.Struct, rename="camel"):
    uid: str = ""
    result: _Result = _Result()
    converted_objects: list[Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    response: _Response | None = None


REVIEW_DECODER = msgspec.json.Decoder(_Review)


def conversion_result(raw: bytes, version: str, uid: str) -> list[Any]:
    """Decode the converted objects of a response. Raises ConversionError."""
    try:
        review = REVIEW_DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConversionError(str(error)) from error
    is_strict = version == "v1"  # the identity was never checked in v1beta1
    if is_strict and (review.api_version, review.kind) != (f"{GROUP}/v1", KIND):
        received = f"{review.api_version or '/'}, Kind={review.kind}"
        raise ConversionError(f"expected webhook response of {GROUP}/v1, Kind={KIND}, got {received}")
    response = review.response
    if response is None:
        raise ConversionError("no response provided")
    if is_strict and response.uid != uid:
        raise ConversionError(f'expected response.uid="{uid}", got "{response.uid}"')
    result = response.result
    if result.status != "Success":
        raise ConversionError(result.message or f"response.result.status was '{result.status}', not 'Success'")
    return response.converted_objects or []


def with_original_metadata(old: Object, new: Any, api_version: str) -> Object:
    """`new` with the metadata of `old`, except labels and annotations. Raises ConversionError."""
    if not isinstance(new, dict):
        raise ConversionError("it is not an object")
    if new.get("apiVersion") != api_version:
        received = new.get("apiVersion", "")
        raise WrongKind(f"invalid groupVersion (expected {api_version}, received {received})")
    if new.get("kind") != old["kind"]:
        raise WrongKind(f"invalid kind (expected {old['kind']}, received {new.get('kind', '')})")
    before, after = old["metadata"], new.get("metadata")
    if not isinstance(after, dict):
        raise ConversionError("missing metadata in converted object")
    for field, word in IDENTITY_FIELDS.items():
        if before.get(field, "") != after.get(field, ""):
            raise ConversionError(f"must have the same {word}: {before.get(field, '')} != {after.get(field, '')}")
    unchanged = {key: value for key, value in before.items() if key not in MUTABLE_METADATA}
    return {
        "apiVersion": api_version,
        **new,
        "metadata": unchanged
        | {field: converted_text_map(before, after, field) for field in MUTABLE_METADATA if after.get(field)},
    }


def converted_text_map(before: Object, after: Object, field: str) -> Object:
    """The labels or annotations of a converted object, validated."""
    converted = after[field]
    if not isinstance(converted, dict) or not all(isinstance(each, str) for each in converted.values()):
        raise ConversionError(f"metadata.{field} must be a map of strings in converted object")
    if converted != before.get(field) and (faults := list(MUTABLE_METADATA[field](converted, f"metadata.{field}"))):
        raise ConversionError(", ".join(map(str, faults)))
    return converted


def object_description(number: int, count: int, error: ConversionError) -> str:
    """The name of an invalid converted object in Kubernetes' messages, which differs for one and many objects."""
    if count > 1:
        return f"converted object at index {number}"
    return "object at index 0" if isinstance(error, WrongKind) else "object"


def conversion_failure(message: str) -> ServerError:
    return ServerError(500, "", message)
