"""Example controller that runs a command in a pod at a given time, as a plain reconciler."""

from dataclasses import dataclass
from datetime import datetime

from tapestry.controller import Informer, Manager, Registry, Result, controller_key, ensure_owned
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import AGE, Column, Kind, decode_spec
from tapestry.kube.objects import is_deleting, value_at
from tapestry.kube.resources import PODS, Resource


class AtSpec(ApiStruct):
    """A command and the time at which to run it."""

    schedule: datetime
    command: str
    image: str = "busybox"


class AtStatus(ApiStruct):
    phase: str = ""


ATS = Resource("demo.wukong.com", "v1alpha1", "At", "ats")
AT = Kind(ATS, AtSpec, AtStatus, columns=(Column("Schedule", ".spec.schedule"), Column("Phase", ".status.phase"), AGE))


@dataclass(frozen=True)
class Ats:
    """Create one Pod for each At when its time has come, and copy the pod's phase to the status."""

    ats: Informer
    pods: Informer
    manager: Manager

    async def reconcile(self, key: str) -> Result | None:
        at = self.ats.store.get(key)
        if at is None or is_deleting(at) or value_at(at, "status", "phase") in ("Succeeded", "Failed"):
            return None
        spec, client = decode_spec(AT, at), self.manager.client
        if spec.schedule > self.manager.now():
            await client.converge(ATS, at, {"status": {"phase": "Waiting"}})
            return Result(requeue_at=spec.schedule)
        container = {"name": "command", "image": spec.image, "command": ["sh", "-c", spec.command]}
        content = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        pod = await ensure_owned(client, self.pods, at, content)
        await client.converge(ATS, at, {"status": {"phase": value_at(pod, "status", "phase", default="Pending")}})
        return None


def setup(manager: Manager) -> None:
    ats, pods = manager.informer(ATS), manager.informer(PODS, filtered=False)
    controller = manager.controller("at", Ats(ats, pods, manager).reconcile)
    controller.watch(ats)
    controller.watch(pods, controller_key(ATS))


def register(registry: Registry) -> None:
    registry.register("at", setup, kinds=(AT,))
