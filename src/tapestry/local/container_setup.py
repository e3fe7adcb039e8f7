"""What the containers of a pod run, and what has to be on the disk for it.

Tokens      tokens of pods' accounts, renewed in time
Launches    the volumes of a pod, written, and the commands of its containers
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tapestry.client.client import Client
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, namespace_of, uid_of
from tapestry.kube.pods import containers_of
from tapestry.kube.times import parse_time
from tapestry.local.container_commands import (
    ContainerFolder,
    Launch,
    ProcessPolicy,
    container_launch,
    field_value,
    localized_command,
    resource_value,
)
from tapestry.local.pod_folders import PodFolder
from tapestry.local.volume_sources import MissingSource, Sources, TokenRequest, volume_files

RENEWAL_FRACTION = 0.8
"""The part of a token's life after which it gets another."""
LOGS_KEPT = 1
"""Runs before the present one whose logs are kept."""


@dataclass
class TokenCache:
    """Tokens of pods' accounts, renewed in time."""

    client: Client
    now: Callable[[], datetime]
    _issued: dict[tuple[str, TokenRequest], tuple[str, datetime]] = field(default_factory=dict)

    async def token_for(self, pod: Object, request: TokenRequest) -> str:
        key = uid_of(pod), request
        token, renewal = self._issued.get(key) or ("", self.now())
        if self.now() >= renewal:
            account = pod["spec"].get("serviceAccountName") or "default"
            audiences = [request.audience] if request.audience else []
            about = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}
            try:
                issued = await self.client.request_token(
                    account, namespace_of(pod) or "", audiences=audiences, seconds=request.seconds, bound_to=about
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
    """What to run for the containers of a pod, by what its sources were when they were last looked at."""

    folder: PodFolder
    address: str
    server: str
    policy: ProcessPolicy
    environ: Mapping[str, str]
    container_folders: dict[str, ContainerFolder] = field(default_factory=dict)
    launches: dict[str, Launch] = field(default_factory=dict)

    def prepare(self, pod: Object, sources: Sources) -> None:
        """Write the pod's volumes, and see what its containers run; raises Missing."""
        self.folder.create(pod)
        for volume in pod["spec"].get("volumes") or ():
            if "emptyDir" in volume:
                self.folder.volume(volume["name"]).mkdir(parents=True, exist_ok=True, mode=0o700)
            else:
                self.folder.write(
                    volume["name"], volume_files(volume, sources, lambda item: downward_api_value(pod, item))
                )
        for each in containers_of(pod):
            name, kubeconfig = each["name"], self.folder.kubeconfig(pod, each, self.server)
            own = "" if pod["spec"].get("hostNetwork") else self.address
            home = ContainerFolder(self.folder.container(name), self.folder.mounts(each), own, kubeconfig)
            self.container_folders[name] = home
            self.launches[name] = container_launch(pod, each, home, sources, self.policy, self.environ)

    def launch(self, container: Object) -> Launch:
        return self.launches[container["name"]]

    def probe(self, container: Object, command: Sequence[str]) -> Launch:
        made, home = self.launches[container["name"]], self.container_folders[container["name"]]
        return made._replace(command=localized_command(command, made.environment, home, self.policy))

    def log(self, container: str, run: int) -> Path:
        self.folder.delete_old_logs(container, run - LOGS_KEPT)
        return self.folder.log(container, run)


def downward_api_value(pod: Object, item: Object) -> str:
    """The text of an item of the downward API."""
    if reference := item.get("fieldRef"):
        return field_value(pod, reference["fieldPath"])
    reference = item["resourceFieldRef"]
    return resource_value(pod, {}, reference)
