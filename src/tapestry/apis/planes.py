"""The Plane kind: a Kubernetes API with its own objects, users and certificates."""

import base64
import hashlib
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from tapestry.kube.api_types import IMMUTABLE, QUANTITY_PATTERN, ApiStruct, Conditions
from tapestry.kube.crds import AGE, Column, Kind
from tapestry.kube.objects import Object, uid_of
from tapestry.kube.resources import Resource

ID_BYTES = 10
"""Size of a plane id: 80 bits, so that nobody can guess the id of another plane."""
MANAGEMENT = "management"
"""Id of the management API in its process. Ids of planes are longer."""
MAX_IDLE_SECONDS = 30 * 24 * 3600
SIZE_PATTERN = QUANTITY_PATTERN.replace("[+-]?", "[+]?", 1)
Backend = Literal["file", "etcd", "memory"]


class PlaneLimits(ApiStruct):
    """Limits of one plane. They protect the other planes of its process."""

    objects: Annotated[int, Meta(ge=0, description="Maximum number of objects, at least 200, or 0 for no limit.")] = (
        50_000
    )
    bytes: Annotated[
        str,
        Meta(
            pattern=SIZE_PATTERN,
            max_length=32,
            description="Maximum size of all objects, at least 1Mi, or 0 for no limit.",
        ),
    ] = "256Mi"
    watches: Annotated[int, Meta(ge=0, description="Maximum number of open watches.")] = 2_000
    requests_in_flight: Annotated[
        int, Meta(ge=1, le=10_000, description="Maximum number of concurrent requests, without watches.")
    ] = 100


class PlaneSpec(ApiStruct):
    """Desired state of a plane."""

    backend: Annotated[
        Backend,
        IMMUTABLE,
        Meta(description="Storage of its objects: a folder, a prefix in etcd, or memory, which a restart empties."),
    ] = "file"
    state: Annotated[
        Literal["Open", "Suspended"],
        Meta(description="Suspended: the plane runs nothing and answers 503 until it is Open again."),
    ] = "Open"
    suspend_reason: Annotated[
        str, Meta(max_length=256, description="Reason that clients see while the plane is suspended.")
    ] = ""
    process: Annotated[
        str, Meta(max_length=253, description="Process that is to hold the plane. Empty: any process of the group.")
    ] = ""
    own_process: Annotated[
        bool,
        Meta(
            description="Hold the plane in a process of its own, which a process of the group starts. Only for planes "
            "in etcd of a management API in etcd, and if `process` is empty."
        ),
    ] = False
    controllers: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(max_length=64, description="Controllers to run, as for `tapestry apiserver --controllers`."),
    ] = ("*",)
    idle_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_IDLE_SECONDS,
            description="Seconds without clients after which the plane sleeps until its next request, at least 10. "
            "0: never.",
        ),
    ] = 0
    limits: Annotated[PlaneLimits, Meta(description="Limits of the plane.")] = field(default_factory=PlaneLimits)
    copy_of: Annotated[
        str, IMMUTABLE, Meta(max_length=253, description="Plane whose objects the plane starts with. Empty: none.")
    ] = ""


class PlaneStatus(ApiStruct):
    phase: (
        Annotated[
            Literal["Opening", "Open", "Asleep", "Suspended", "Failed", "Released", "Deleting"],
            Meta(description="State of the plane."),
        ]
        | None
    ) = None
    message: Annotated[str, Meta(description="Reason of the phase.")] | None = None
    wake_time: Annotated[datetime, Meta(description="Time of the next scheduled work of a sleeping plane.")] | None = (
        None
    )
    id: Annotated[str, Meta(description="Random id, part of the plane's addresses.")] | None = None
    address: Annotated[str, Meta(description="URL of the plane's API.")] | None = None
    port: Annotated[int, Meta(description="Port of its own, if its process has a range of ports.")] | None = None
    port_message: Annotated[str, Meta(description="Reason why nothing listens on a port of its own.")] | None = None
    dns_port: Annotated[int, Meta(description="Port of the DNS resolver for the pods of the plane.")] | None = None
    dns_port_message: Annotated[str, Meta(description="Reason why no DNS resolver listens.")] | None = None
    holder: Annotated[str, Meta(description="Process that holds the plane.")] | None = None
    epoch: Annotated[int, Meta(description="Number of times that a process has taken the plane.")] | None = None
    revision: (
        Annotated[int, Meta(description="Revision of the plane's objects when the status was written.")] | None
    ) = None
    objects: Annotated[int, Meta(description="Number of objects.")] | None = None
    bytes: Annotated[int, Meta(description="Size of all objects.")] | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None


PLANES = Resource("tapestry.io", "v1alpha1", "Plane", "planes", namespaced=False)
PLANE: Kind[PlaneSpec] = Kind(
    PLANES,
    PlaneSpec,
    PlaneStatus,
    description="A Kubernetes API with its own objects, users and certificates.",
    categories=("tapestry",),
    columns=(
        Column("Phase", ".status.phase"),
        Column("ID", ".status.id"),
        Column("Objects", ".status.objects", "integer"),
        Column("Holder", ".status.holder", priority=1),
        Column("Address", ".status.address", priority=1),
        Column("Port", ".status.port", "integer", priority=1),
        Column("Message", ".status.message", priority=1),
        AGE,
    ),
)


def wanted_process(plane: Object, spec: PlaneSpec) -> str:
    """Return the process of a group that is to hold a plane; empty if any may."""
    is_own = spec.own_process and spec.backend == "etcd" and not spec.process
    return own_process_name(plane_id(plane)) if is_own else spec.process


def own_process_name(plane_id: str) -> str:
    """Return the name of the process that holds only one plane, and that another process starts."""
    return f"own-{plane_id}"


def plane_id(plane: Object) -> str:
    """Return the id of a plane: a hash of the random UID of its record, so it needs no write and never changes."""
    digest = hashlib.blake2b(uid_of(plane).encode(), digest_size=ID_BYTES).digest()
    return base64.b32encode(digest).decode().lower()
