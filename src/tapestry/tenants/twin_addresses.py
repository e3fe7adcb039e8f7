"""Addresses of twins, as their sanitized status reports them."""

from collections.abc import Iterable

import msgspec

from tapestry.syncer.views import PhysicalPod, Twin


class TwinAddresses(msgspec.Struct):
    """Addresses in the sanitized status of a twin."""

    pod: list[dict[str, str]] = msgspec.field(default_factory=list, name="podIPs")
    host: list[dict[str, str]] = msgspec.field(default_factory=list, name="hostIPs")


def addresses_of(pod: PhysicalPod) -> Iterable[str]:
    """Return the addresses of a pod that are not also addresses of its node."""
    if not isinstance(pod, Twin) or pod.requests is None:
        return ()
    found = msgspec.json.decode(pod.status_json, type=TwinAddresses)
    return {each["ip"] for each in found.pod} - {each["ip"] for each in found.host}
