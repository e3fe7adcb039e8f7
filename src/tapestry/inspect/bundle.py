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
from tapestry.inspect.anykind.hand import Hand
from tapestry.inspect.facts import Unseen, owner_policies, physical
from tapestry.inspect.questions import Questions
from tapestry.inspect.redaction import Redaction, credentials_in, secrets_in
from tapestry.inspect.status import Value
from tapestry.kube.errors import BadRequest, KubeError, NotFound
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, LEASES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp

HOME = keys.SYSTEM_NAMESPACE
MOST = 2000
"""Objects in one file."""
LONGEST_LOG = 1 << 20
"""Bytes of a log: its end."""
LARGEST = 64 << 20
"""Bytes of all files, before they are packed."""
LINES = 5000
SECONDS = 30.0
"""For all of one physical cluster, and for one log."""
MANIFEST = "manifest.json"

Say = Callable[[str], None]


class Missing(Value, frozen=True):
    """Something that is not in the bundle, or not all of it."""

    what: str
    why: str


@dataclass
class Gathered:
    """Everything as it was read: not to be shown to anybody."""

    objects: dict[str, list[Object]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Collector:
    """Gathers step by step, and says which one it is at."""

    gathered: Gathered
    say: Say

    async def step(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Do one part; where it cannot be done, that is noted, and the others are."""
        self.say(what)
        try:
            await work
        except (KubeError, Unseen, OSError, ValueError) as error:
            self.gathered.missing.append(Missing(what=what, why=" ".join(str(error).split())))

    async def cluster(self, questions: Questions) -> None:
        """The virtual cluster, the logs of what is ours there, and the physical clusters that have joined."""
        client, objects = questions.client, self.gathered.objects
        await self.step("version of the API server", self.version(client))
        for resource, namespace in (
            *((each, None) for each in (CLUSTER_BINDINGS, POLICIES, NODES, PODS, EVENTS)),
            *((each, HOME) for each in (DEPLOYMENTS, LEASES, CONFIGMAPS, SECRETS)),
        ):
            file = f"virtual/{resource.plural}.yaml"
            await self.step(f"{resource.plural} above", self.listed(client, resource, namespace, file))
        for pod in objects.get("virtual/pods.yaml", ()):
            if pod["metadata"].get("namespace") == HOME:
                await self.step(f"logs of pod {name_of(pod)}", self.logs(client, pod))
        for binding in objects.get("virtual/clusterbindings.yaml", ()):
            await self.step(f"physical cluster of {name_of(binding)}", self.below(questions, binding))

    async def version(self, client: Client) -> None:
        self.gathered.texts["virtual/version.json"] = pretty(await client.version())

    async def listed(self, client: Client, resource: Resource, namespace: str | None, file: str) -> None:
        self.gathered.objects[file] = await client.list(resource, namespace)

    async def below(self, questions: Questions, binding: Object) -> None:
        """What the binding's own account may see: the nodes, and what is in the mount namespace."""
        folder, mount = f"physical/{name_of(binding)}", value_at(binding, "spec", "mountNamespace")
        objects = self.gathered.objects
        async with physical(questions.client, binding, questions.connect, SECONDS) as client:
            self.gathered.texts[f"{folder}/version.json"] = pretty(await client.version())
            objects[f"{folder}/nodes.yaml"] = await client.list(NODES)
            objects[f"{folder}/policies.yaml"] = await owner_policies(client)
            objects[f"{folder}/namespaces.yaml"] = await client.list(NAMESPACES, fields=f"metadata.name={mount}")
            for resource in (PODS, EVENTS):
                await self.listed(client, resource, mount, f"{folder}/{resource.plural}.yaml")

    async def logs(self, client: Client, pod: Object) -> None:
        hand = Hand(client, HOME)
        for container in value_at(pod, "status", "containerStatuses", default=[]):
            name = container["name"]
            file = f"logs/{name_of(pod)}/{name}"
            self.gathered.texts[f"{file}.log"] = await log_of(hand, pod, name)
            if container.get("restartCount"):
                try:
                    before = await log_of(hand, pod, name, previous="true")
                except (NotFound, BadRequest):  # nobody has kept it
                    continue
                self.gathered.texts[f"{file}.before.log"] = before

    def world(self, folder: Path) -> None:
        """The logs of the processes of a world that runs, or ran, from a folder."""
        for file in sorted([*folder.glob("*/log"), *folder.glob("*/*.log")]):
            if file.name != "audit.log":
                name = f"world/{file.parent.name}/{file.name.removesuffix('.log')}.log"
                self.gathered.texts[name] = end_of(file)
        for file in folder.glob("*/kubeconfig"):
            self.gathered.secrets.update(credentials_in(file.read_text()))


def end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LONGEST_LOG, 0))
        return file.read(LONGEST_LOG).decode(errors="replace")


async def log_of(hand: Hand, pod: Object, container: str, **more: str) -> str:
    query = {"container": container, "tailLines": str(LINES), **more}
    found = b""
    async with asyncio.timeout(SECONDS):
        async for chunk in hand.logs(name_of(pod), query):
            found = (found + chunk)[-LONGEST_LOG:]
    return found.decode(errors="replace")


# -- what goes into the archive


def files_of(gathered: Gathered, versions: Mapping[str, str], now: datetime) -> dict[str, bytes]:
    """The files of the bundle by their names, the manifest first."""
    everything = [obj for found in gathered.objects.values() for obj in found]
    redaction = Redaction(secrets_in(everything) | gathered.secrets)
    missing = list(gathered.missing)
    files: dict[str, bytes] = {}
    room = LARGEST
    for name, content in (*texts(gathered, redaction), *object_files(gathered, redaction, missing)):
        room -= len(content)
        if room >= 0:
            files[name] = content
        else:
            room += len(content)
            missing.append(Missing(what=name, why=f"there is no more room: all files may have {LARGEST >> 20} MiB"))
    manifest = {
        "collected": timestamp(now),
        "versions": versions,
        "files": {name: {"bytes": len(content)} for name, content in files.items()},
        "missing": [{"what": redaction.text(each.what), "why": redaction.text(each.why)} for each in missing],
        "redacted": "values of variables, commands, data, annotations, credentials and certificates are not in it",
    }
    return {MANIFEST: pretty(manifest).encode(), **files}


def texts(gathered: Gathered, redaction: Redaction) -> Iterable[tuple[str, bytes]]:
    return [(name, redaction.text(text).encode()) for name, text in gathered.texts.items()]


def object_files(gathered: Gathered, redaction: Redaction, missing: list[Missing]) -> Iterable[tuple[str, bytes]]:
    for name, found in gathered.objects.items():
        if len(found) > MOST:
            missing.append(Missing(what=name, why=f"has the newest {MOST} of {len(found)} objects"))
        shown = [redaction.object(obj) for obj in newest(found)[:MOST]]
        yield name, yaml.dump_all(shown, Dumper=yaml.CSafeDumper, sort_keys=False, explicit_start=True).encode()


def newest(found: Sequence[Object]) -> list[Object]:
    """The newest first; of events, those that were told last."""
    return sorted(found, key=lambda obj: obj.get("lastTimestamp") or obj["metadata"]["creationTimestamp"], reverse=True)


def archive_of(files: Mapping[str, bytes], folder: str, now: datetime) -> bytes:
    """A packed archive with the files in one folder, for the eyes of whoever unpacks it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(f"{folder}/{name}")
            about.size, about.mode, about.mtime = len(content), 0o600, int(now.timestamp())
            archive.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
