"""Diagnostic bundle: objects, logs and a manifest of what could not be read.

`Collector` reads with the user's permissions and skips what it may not read.  `bundle_files` (pure) decides the
contents of the archive: redacted (`redaction`), limited in size, with a manifest of missing items.
"""

import asyncio
import io
import tarfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.inspect.anykind.kubectl_lite import KubectlLite
from tapestry.inspect.queries import Queries
from tapestry.inspect.redaction import Redaction, credentials_in, secrets_in
from tapestry.inspect.snapshots import ClusterUnreadable, owner_policies, physical_client
from tapestry.inspect.status import Printable
from tapestry.kube.errors import BadRequest, KubeError, NotFound
from tapestry.kube.objects import Object, name_of, namespace_of, value_at
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, LEASES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp
from tapestry.manager.location import manager_namespace

MAX_OBJECTS = 2000
"""Objects per file."""
MAX_LOG_BYTES = 1 << 20
"""Bytes kept from the end of a log."""
MAX_BUNDLE_BYTES = 64 << 20
"""Bytes of all files before compression."""
MAX_LOG_LINES = 5000
COLLECT_TIMEOUT = 30.0
"""Seconds for one physical cluster, and for one log."""
MANIFEST = "manifest.json"

ReportProgress = Callable[[str], None]


class MissingItem(Printable, frozen=True):
    what: str
    why: str


@dataclass
class CollectedData:
    """Collected data before redaction; it may contain secrets."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    missing: list[MissingItem] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Collector:
    """Collect data step by step and report each step."""

    collected: CollectedData
    report: ReportProgress

    async def run_step(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Run one step; record a failure and continue."""
        self.report(what)
        try:
            await work
        except (KubeError, ClusterUnreadable, OSError, ValueError) as error:
            self.collected.missing.append(MissingItem(what=what, why=" ".join(str(error).split())))

    async def collect_clusters(self, queries: Queries) -> None:
        """Collect the virtual cluster, the logs of Tapestry's pods there, and the joined physical clusters."""
        client, objects = queries.client, self.collected.objects
        namespace = await self.find_manager_namespace(client)
        await self.run_step("version of the API server", self.collect_version(client))
        for resource, place in (
            *((each, None) for each in (CLUSTER_BINDINGS, POLICIES, NODES, PODS, EVENTS)),
            *((each, namespace) for each in (DEPLOYMENTS, LEASES, CONFIGMAPS, SECRETS)),
        ):
            file = f"virtual/{resource.plural}.yaml"
            await self.run_step(f"virtual {resource.plural}", self.collect_objects(client, resource, place, file))
        for pod in objects.get("virtual/pods.yaml", ()):
            if namespace_of(pod) == namespace:
                await self.run_step(f"logs of pod {name_of(pod)}", self.collect_logs(client, pod, namespace))
        for binding in objects.get("virtual/clusterbindings.yaml", ()):
            await self.run_step(
                f"physical cluster of {name_of(binding)}", self.collect_physical_cluster(queries, binding)
            )

    async def find_manager_namespace(self, client: Client) -> str:
        try:
            return await manager_namespace(client)
        except KubeError:  # the next steps record why
            return keys.SYSTEM_NAMESPACE

    async def collect_version(self, client: Client) -> None:
        self.collected.texts["virtual/version.json"] = pretty_json(await client.server_version())

    async def collect_objects(self, client: Client, resource: Resource, namespace: str | None, file: str) -> None:
        self.collected.objects[file] = await client.list(resource, namespace)

    async def collect_physical_cluster(self, queries: Queries, binding: Object) -> None:
        """Collect what the binding's account may read: nodes, policies and the mount namespace."""
        folder, mount = f"physical/{name_of(binding)}", value_at(binding, "spec", "mountNamespace")
        objects = self.collected.objects
        async with physical_client(queries.client, binding, queries.connect, COLLECT_TIMEOUT) as client:
            self.collected.texts[f"{folder}/version.json"] = pretty_json(await client.server_version())
            objects[f"{folder}/nodes.yaml"] = await client.list(NODES)
            objects[f"{folder}/policies.yaml"] = await owner_policies(client)
            objects[f"{folder}/namespaces.yaml"] = await client.list(NAMESPACES, fields=f"metadata.name={mount}")
            for resource in (PODS, EVENTS):
                await self.collect_objects(client, resource, mount, f"{folder}/{resource.plural}.yaml")

    async def collect_logs(self, client: Client, pod: Object, namespace: str) -> None:
        kubectl = KubectlLite(client, namespace)
        for container in value_at(pod, "status", "containerStatuses", default=[]):
            name = container["name"]
            file = f"logs/{name_of(pod)}/{name}"
            self.collected.texts[f"{file}.log"] = await container_log(kubectl, pod, name)
            if container.get("restartCount"):
                try:
                    previous_log = await container_log(kubectl, pod, name, previous="true")
                except (NotFound, BadRequest):  # the log was not kept
                    continue
                self.collected.texts[f"{file}.before.log"] = previous_log

    def collect_world(self, folder: Path) -> None:
        for file in sorted([*folder.glob("*/log"), *folder.glob("*/*.log")]):
            if file.name != "audit.log":
                name = f"world/{file.parent.name}/{file.name.removesuffix('.log')}.log"
                self.collected.texts[name] = log_tail(file)
        for file in folder.glob("*/kubeconfig"):
            self.collected.secrets.update(credentials_in(file.read_text()))


def log_tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - MAX_LOG_BYTES, 0))
        return file.read(MAX_LOG_BYTES).decode(errors="replace")


async def container_log(kubectl: KubectlLite, pod: Object, container: str, **more: str) -> str:
    query = {"container": container, "tailLines": str(MAX_LOG_LINES), **more}
    found = b""
    async with asyncio.timeout(COLLECT_TIMEOUT):
        async for chunk in kubectl.logs(name_of(pod), query):
            found = (found + chunk)[-MAX_LOG_BYTES:]
    return found.decode(errors="replace")


# -- contents of the archive


def bundle_files(collected: CollectedData, versions: Mapping[str, str], now: datetime) -> dict[str, bytes]:
    everything = [obj for found in collected.objects.values() for obj in found]
    redaction = Redaction(secrets_in(everything) | collected.secrets)
    missing = list(collected.missing)
    files: dict[str, bytes] = {}
    free_bytes = MAX_BUNDLE_BYTES
    for name, content in (*text_files(collected, redaction), *object_files(collected, redaction, missing)):
        free_bytes -= len(content)
        if free_bytes >= 0:
            files[name] = content
        else:
            free_bytes += len(content)
            missing.append(MissingItem(what=name, why=f"the limit of {MAX_BUNDLE_BYTES >> 20} MiB is reached"))
    manifest = {
        "collected": timestamp(now),
        "versions": versions,
        "files": {name: {"bytes": len(content)} for name, content in files.items()},
        "missing": [
            {"what": redaction.redact_text(each.what), "why": redaction.redact_text(each.why)} for each in missing
        ],
        "redacted": "values of variables, commands, data, annotations, credentials and certificates are removed",
    }
    return {MANIFEST: pretty_json(manifest).encode(), **files}


def text_files(collected: CollectedData, redaction: Redaction) -> Iterable[tuple[str, bytes]]:
    return [(name, redaction.redact_text(text).encode()) for name, text in collected.texts.items()]


def object_files(
    collected: CollectedData, redaction: Redaction, missing: list[MissingItem]
) -> Iterable[tuple[str, bytes]]:
    for name, found in collected.objects.items():
        if len(found) > MAX_OBJECTS:
            missing.append(MissingItem(what=name, why=f"has the newest {MAX_OBJECTS} of {len(found)} objects"))
        redacted = [redaction.redact_object(obj) for obj in newest_first(found)[:MAX_OBJECTS]]
        yield name, yaml.dump_all(redacted, Dumper=yaml.CSafeDumper, sort_keys=False, explicit_start=True).encode()


def newest_first(found: Sequence[Object]) -> list[Object]:
    """Sort by creation time, or for events by the last occurrence, with the newest first."""
    return sorted(found, key=lambda obj: obj.get("lastTimestamp") or obj["metadata"]["creationTimestamp"], reverse=True)


def tar_archive(files: Mapping[str, bytes], folder: str, now: datetime) -> bytes:
    """Return a gzipped tar archive of the files in one folder, readable only by its owner."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(now.timestamp())
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def pretty_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
