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
from tapestry.local.commands import Home, Launch, Trust, amount_text, field_text, in_place, launch
from tapestry.local.pod_folders import PodFolder
from tapestry.local.sources import Missing, Sources, Token, files_of

RENEWED_AT = 0.8
"""The part of a token's life after which it gets another."""
KEPT_RUNS = 1
"""Runs before the present one whose logs are kept."""


@dataclass
class Tokens:
    """Tokens of pods' accounts, renewed in time."""

    client: Client
    now: Callable[[], datetime]
    _issued: dict[tuple[str, Token], tuple[str, datetime]] = field(default_factory=dict)

    async def of(self, pod: Object, wanted: Token) -> str:
        key = uid_of(pod), wanted
        token, renewal = self._issued.get(key) or ("", self.now())
        if self.now() >= renewal:
            account = pod["spec"].get("serviceAccountName") or "default"
            audiences = [wanted.audience] if wanted.audience else []
            about = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}
            try:
                issued = await self.client.token(
                    account, namespace_of(pod) or "", audiences=audiences, seconds=wanted.seconds, bound_to=about
                )
            except NotFound as error:
                raise Missing(f"no token for the account {account}: {error}") from error
            now, token = self.now(), issued["token"]
            renewal = now + (parse_time(issued["expirationTimestamp"]) - now) * RENEWED_AT
            self._issued[key] = token, renewal
        return token

    def next_renewal(self, pod: Object) -> datetime | None:
        return min((due for (uid, _), (_, due) in self._issued.items() if uid == uid_of(pod)), default=None)

    def forget(self, pod: Object) -> None:
        for key in [each for each in self._issued if each[0] == uid_of(pod)]:
            del self._issued[key]


@dataclass
class Launches:
    """What to run for the containers of a pod, by what its sources were when they were last looked at."""

    folder: PodFolder
    address: str
    server: str
    trust: Trust
    environ: Mapping[str, str]
    homes: dict[str, Home] = field(default_factory=dict)
    launches: dict[str, Launch] = field(default_factory=dict)

    def prepare(self, pod: Object, sources: Sources) -> None:
        """Write the pod's volumes, and see what its containers run; raises Missing."""
        self.folder.make(pod)
        for volume in pod["spec"].get("volumes") or ():
            if "emptyDir" in volume:
                self.folder.volume(volume["name"]).mkdir(parents=True, exist_ok=True, mode=0o700)
            else:
                self.folder.write(volume["name"], files_of(volume, sources, lambda item: downward(pod, item)))
        for each in containers_of(pod):
            name, kubeconfig = each["name"], self.folder.kubeconfig(pod, each, self.server)
            own = "" if pod["spec"].get("hostNetwork") else self.address
            home = Home(self.folder.container(name), self.folder.mounts(each), own, kubeconfig)
            self.homes[name] = home
            self.launches[name] = launch(pod, each, home, sources, self.trust, self.environ)

    def launch(self, container: Object) -> Launch:
        return self.launches[container["name"]]

    def probe(self, container: Object, command: Sequence[str]) -> Launch:
        made, home = self.launches[container["name"]], self.homes[container["name"]]
        return made._replace(command=in_place(command, made.environment, home, self.trust))

    def log(self, container: str, run: int) -> Path:
        self.folder.forget_logs(container, run - KEPT_RUNS)
        return self.folder.log(container, run)


def downward(pod: Object, item: Object) -> str:
    """The text of an item of the downward API."""
    if reference := item.get("fieldRef"):
        return field_text(pod, reference["fieldPath"])
    reference = item["resourceFieldRef"]
    return amount_text(pod, {}, reference)
