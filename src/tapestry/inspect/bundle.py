"""A bundle for whoever is asked for help: what there is, what was told of it, and what could not be read.

`Collector` gathers it with the rights of whoever asks, and leaves out what it cannot have.  What then goes into the
archive, `files_of` decides (pure): redacted (`redaction`), bounded, and with a manifest that says what is missing.
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
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, LEASES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp

SYSTEM_NAMESPACE = keys.SYSTEM_NAMESPACE
MOST = 2000
"""Objects in one file."""
MAX_LOG_BYTES = 1 << 20
"""Bytes of a log: its end."""
LARGEST = 64 << 20
"""Bytes of all files, before they are packed."""
MAX_LOG_LINES = 5000
COLLECT_TIMEOUT = 30.0
"""For all of one physical cluster, and for one log."""
MANIFEST = "manifest.json"

ReportProgress = Callable[[str], None]


class MissingItem(Printable, frozen=True):
    """Something that is not in the bundle, or not all of it."""

    what: str
    why: str


@dataclass
class CollectedData:
    """Everything as it was read: not to be shown to anybody."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    missing: list[MissingItem] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Collector:
    """Gathers step by step, and says which one it is at."""

    collected: CollectedData
    report: ReportProgress

    async def run_step(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Do one part; where it cannot be done, that is noted, and the others are."""
        self.report(what)
        try:
            await work
        except (KubeError, ClusterUnreadable, OSError, ValueError) as error:
            self.collected.missing.append(MissingItem(what=what, why=" ".join(str(error).split())))

    async def collect_clusters(self, queries: Queries) -> None:
        """The virtual cluster, the logs of what is ours there, and the physical clusters that have joined."""
        client, objects = queries.client, self.collected.objects
        await self.run_step("version of the API server", self.collect_version(client))
        for resource, namespace in (
            *((each, None) for each in (CLUSTER_BINDINGS, POLICIES, NODES, PODS, EVENTS)),
            *((each, SYSTEM_NAMESPACE) for each in (DEPLOYMENTS, LEASES, CONFIGMAPS, SECRETS)),
        ):
            file = f"virtual/{resource.plural}.yaml"
            await self.run_step(f"{resource.plural} above", self.collect_objects(client, resource, namespace, file))
        for pod in objects.get("virtual/pods.yaml", ()):
            if pod["metadata"].get("namespace") == SYSTEM_NAMESPACE:
                await self.run_step(f"logs of pod {name_of(pod)}", self.collect_logs(client, pod))
        for binding in objects.get("virtual/clusterbindings.yaml", ()):
            await self.run_step(
                f"physical cluster of {name_of(binding)}", self.collect_physical_cluster(queries, binding)
            )

    async def collect_version(self, client: Client) -> None:
        self.collected.texts["virtual/version.json"] = pretty_json(await client.server_version())

    async def collect_objects(self, client: Client, resource: Resource, namespace: str | None, file: str) -> None:
        self.collected.objects[file] = await client.list(resource, namespace)

    async def collect_physical_cluster(self, queries: Queries, binding: Object) -> None:
        """What the binding's own account may see: the nodes, and what is in the mount namespace."""
        folder, mount = f"physical/{name_of(binding)}", value_at(binding, "spec", "mountNamespace")
        objects = self.collected.objects
        async with physical_client(queries.client, binding, queries.connect, COLLECT_TIMEOUT) as client:
            self.collected.texts[f"{folder}/version.json"] = pretty_json(await client.server_version())
            objects[f"{folder}/nodes.yaml"] = await client.list(NODES)
            objects[f"{folder}/policies.yaml"] = await owner_policies(client)
            objects[f"{folder}/namespaces.yaml"] = await client.list(NAMESPACES, fields=f"metadata.name={mount}")
            for resource in (PODS, EVENTS):
                await self.collect_objects(client, resource, mount, f"{folder}/{resource.plural}.yaml")

    async def collect_logs(self, client: Client, pod: Object) -> None:
        hand = KubectlLite(client, SYSTEM_NAMESPACE)
        for container in value_at(pod, "status", "containerStatuses", default=[]):
            name = container["name"]
            file = f"logs/{name_of(pod)}/{name}"
            self.collected.texts[f"{file}.log"] = await container_log(hand, pod, name)
            if container.get("restartCount"):
                try:
                    before = await container_log(hand, pod, name, previous="true")
                except (NotFound, BadRequest):  # nobody has kept it
                    continue
                self.collected.texts[f"{file}.before.log"] = before

    def collect_world(self, folder: Path) -> None:
        """The logs of the processes of a world that runs, or ran, from a folder."""
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


# -- what goes into the archive


def bundle_files(collected: CollectedData, versions: Mapping[str, str], now: datetime) -> dict[str, bytes]:
    """The files of the bundle by their names, the manifest first."""
    everything = [obj for found in collected.objects.values() for obj in found]
    redaction = Redaction(secrets_in(everything) | collected.secrets)
    missing = list(collected.missing)
    files: dict[str, bytes] = {}
    room = LARGEST
    for name, content in (*text_files(collected, redaction), *object_files(collected, redaction, missing)):
        room -= len(content)
        if room >= 0:
            files[name] = content
        else:
            room += len(content)
            missing.append(MissingItem(what=name, why=f"there is no more room: all files may have {LARGEST >> 20} MiB"))
    manifest = {
        "collected": timestamp(now),
        "versions": versions,
        "files": {name: {"bytes": len(content)} for name, content in files.items()},
        "missing": [
            {"what": redaction.redact_text(each.what), "why": redaction.redact_text(each.why)} for each in missing
        ],
        "redacted": "values of variables, commands, data, annotations, credentials and certificates are not in it",
    }
    return {MANIFEST: pretty_json(manifest).encode(), **files}


def text_files(collected: CollectedData, redaction: Redaction) -> Iterable[tuple[str, bytes]]:
    return [(name, redaction.redact_text(text).encode()) for name, text in collected.texts.items()]


def object_files(
    collected: CollectedData, redaction: Redaction, missing: list[MissingItem]
) -> Iterable[tuple[str, bytes]]:
    for name, found in collected.objects.items():
        if len(found) > MOST:
            missing.append(MissingItem(what=name, why=f"has the newest {MOST} of {len(found)} objects"))
        shown = [redaction.redact_object(obj) for obj in newest_first(found)[:MOST]]
        yield name, yaml.dump_all(shown, Dumper=yaml.CSafeDumper, sort_keys=False, explicit_start=True).encode()


def newest_first(found: Sequence[Object]) -> list[Object]:
    """The newest first; of events, those that were told last."""
    return sorted(found, key=lambda obj: obj.get("lastTimestamp") or obj["metadata"]["creationTimestamp"], reverse=True)


def tar_archive(files: Mapping[str, bytes], folder: str, now: datetime) -> bytes:
    """A packed archive with the files in one folder, for the eyes of whoever unpacks it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(f"{folder}/{name}")
            about.size, about.mode, about.mtime = len(content), 0o600, int(now.timestamp())
            archive.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def pretty_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
