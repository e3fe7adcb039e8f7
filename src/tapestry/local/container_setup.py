"""Volumes, tokens and commands of a pod's containers on disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tapestry.client.client import Client
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, namespace_of, uid_of
from tapestry.kube.pods import CONTAINER_FIELDS, CREATION_CONTAINER_FIELDS, containers_of
from tapestry.kube.times import parse_time
from tapestry.local.container_commands import (
    DEFAULT_SHELL,
    KUBECONFIG_PATH,
    ContainerFolder,
    ContainerMount,
    Isolation,
    Launch,
    ProcessPolicy,
    container_launch,
    exec_command,
    field_value,
    localized_command,
    resource_value,
)
from tapestry.local.container_processes import PodEnvironment
from tapestry.local.pod_folders import PodFolder
from tapestry.local.pod_sandbox import Endpoint, PodSandbox
from tapestry.local.volume_sources import MissingSource, Sources, TokenRequest, volume_files

RENEWAL_FRACTION = 0.8
"""Fraction of a token's lifetime after which it is renewed."""
PREVIOUS_LOGS = 1
"""Number of previous runs whose logs are kept."""


@dataclass
class TokenCache:
    """Tokens of pods' service accounts, renewed before they expire."""

    client: Client
    now: Callable[[], datetime]
    _issued: dict[tuple[str, TokenRequest], tuple[str, datetime]] = field(default_factory=dict)

    async def token_for(self, pod: Object, request: TokenRequest) -> str:
        key = uid_of(pod), request
        token, renewal = self._issued.get(key) or ("", self.now())
        if self.now() >= renewal:
            account = pod["spec"].get("serviceAccountName") or "default"
            audiences = [request.audience] if request.audience else []
            bound_to = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}
            try:
                issued = await self.client.request_token(
                    account, namespace_of(pod) or "", audiences=audiences, seconds=request.seconds, bound_to=bound_to
                )
            except NotFound as error:
                raise MissingSource(f"no token for the account {account}: {error}") from error
            now, token = self.now(), issued["token"]
            renewal = now + (parse_time(issued["expirationTimestamp"]) - now) * RENEWAL_FRACTION
            self._issued[key] = token, renewal
        return token

    def next_renewal(self, pod: Object) -> datetime | None:
        return min((due for (uid, _), (_, due) in self._issued.items() if uid == uid_of(pod)), default=None)

    def forget(self, pod: Object) -> None:
        for key in [each for each in self._issued if each[0] == uid_of(pod)]:
            del self._issued[key]


@dataclass
class PodLauncher:
    """Write the volumes of a pod and compute the commands of its containers."""

    folder: PodFolder
    address: str
    server: str
    policy: ProcessPolicy
    environ: Mapping[str, str]
    servers: Callable[[], Sequence[Endpoint]] = tuple
    """Return the API servers that pods with their own network may connect to."""
    container_folders: dict[str, ContainerFolder] = field(default_factory=dict)
    launches: dict[str, Launch] = field(default_factory=dict)

    def prepare(self, pod: Object, sources: Sources) -> None:
        """Write the pod's volumes and compute the launches; raise MissingSource."""
        containers = runnable_containers(pod, self.policy)
        self.folder.create(containers)
        for volume in pod["spec"].get("volumes") or ():
            if "emptyDir" in volume:
                self.folder.volume(volume["name"]).mkdir(parents=True, exist_ok=True, mode=0o700)
            else:
                self.folder.write(
                    volume["name"], volume_files(volume, sources, lambda item: downward_api_value(pod, item))
                )
        isolation = self.policy.isolation
        for each in containers:
            check_image(each, self.policy)
            name = each["name"]
            kubeconfig = self.folder.kubeconfig(pod, each, self.server, mounted=isolation is not None)
            address = "" if pod["spec"].get("hostNetwork") else self.address
            folder = ContainerFolder(self.folder.container(name), self.folder.mounts(each), address, kubeconfig)
            self.container_folders[name] = folder
            launch = container_launch(pod, each, folder, sources, self.policy, self.environ)
            if isolation is not None:
                launch = launch._replace(mounts=[*container_mounts(pod, each, self.folder, isolation, kubeconfig)])
            self.launches[name] = launch

    def launch(self, container: Object) -> Launch:
        return self.launches[container["name"]]

    def probe(self, container: Object, command: Sequence[str]) -> Launch:
        launch, container_folder = self.launches[container["name"]], self.container_folders[container["name"]]
        return launch._replace(command=localized_command(command, launch.environment, container_folder, self.policy))

    def isolated_environment(self, sandbox: PodSandbox) -> PodEnvironment:
        hidden = self.policy.isolation.hidden if self.policy.isolation is not None else ()
        return PodEnvironment(sandbox, self.folder.root, hidden)

    def api_servers(self) -> Sequence[Endpoint]:
        return self.servers()

    def exec(self, container: Object, command: Sequence[str]) -> Launch:
        launch, container_folder = self.launches[container["name"]], self.container_folders[container["name"]]
        return launch._replace(command=exec_command(command, container_folder, self.policy))

    def log(self, container: str, run: int) -> Path:
        self.folder.delete_old_logs(container, run - PREVIOUS_LOGS)
        return self.folder.log(container, run)


def runnable_containers(pod: Object, policy: ProcessPolicy, fields: Sequence[str] = CONTAINER_FIELDS) -> list[Object]:
    """Return the containers of the pod; ephemeral ones run only where any pod does, by default a shell."""
    if not policy.run_pods:
        fields = CREATION_CONTAINER_FIELDS
    ephemeral = {each["name"] for each in pod["spec"].get("ephemeralContainers") or ()}
    return [
        {**each, "command": DEFAULT_SHELL} if each["name"] in ephemeral and not each.get("command") else each
        for each in containers_of(pod, fields)
    ]


def check_image(container: Object, policy: ProcessPolicy) -> None:
    image = container.get("image") or ""
    if policy.run_pods and image.startswith("/") and not Path(image).is_dir():
        raise MissingSource(f'container {container["name"]}: the image "{image}" is not a folder of this machine')


def container_mounts(
    pod: Object, container: Object, folder: PodFolder, isolation: Isolation, kubeconfig: Path | None
) -> Iterator[ContainerMount]:
    """Yield the mounts of a container with namespaces, outer ones first; only emptyDir volumes are writable."""
    writable = {each["name"] for each in pod["spec"].get("volumes") or () if "emptyDir" in each}
    yield ContainerMount("/tmp", folder.tmp(container["name"]), read_only=False)
    yield ContainerMount(isolation.home, folder.container(container["name"]), read_only=False)
    yield from (ContainerMount(each, Path(each)) for each in isolation.visible if isolation.hides(each))
    if kubeconfig is not None:
        yield ContainerMount(KUBECONFIG_PATH, kubeconfig)
    for each in sorted(container.get("volumeMounts") or (), key=lambda mount: str(mount["mountPath"]).count("/")):
        read_only = bool(each.get("readOnly")) or each["name"] not in writable
        volume, sub_path = folder.volume(each["name"]), each.get("subPath") or ""
        yield ContainerMount(each["mountPath"], volume, sub_path, read_only=read_only)


def downward_api_value(pod: Object, item: Object) -> str:
    if reference := item.get("fieldRef"):
        return field_value(pod, reference["fieldPath"])
    reference = item["resourceFieldRef"]
    return resource_value(pod, {}, reference)
