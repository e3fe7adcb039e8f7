"""Minimal relay between two clusters: one create per pod below, one status patch above.

    python -m benchmarks.relay VIRTUAL PHYSICAL PREFIX MOUNT

takes two kubeconfigs, the name prefix of virtual nodes, and the namespace for twins. It is the lower limit with which
the syncer is compared: no cache, no rules, no retries, no safety. It uses Tapestry only to load the kubeconfigs.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from msgspec import json

from tapestry.client.kubeconfig import load_access

WORKERS = 32
TWIN = "benchmarks/relay"
"""Label of twins that the relay created."""
NAME, NAMESPACE = "benchmarks/name", "benchmarks/namespace"
"""Annotations of a twin: name and namespace of its virtual pod."""

Object = dict[str, Any]
Job = tuple[aiohttp.ClientSession, str, str, Any, str]
"""Session, method, path, body and content type of a request."""
JSON, MERGE = "application/json", "application/merge-patch+json"


@dataclass
class Relay:
    virtual: aiohttp.ClientSession
    physical: aiohttp.ClientSession
    prefix: str
    mount: str
    jobs: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)
    created: set[str] = field(default_factory=set)
    """UIDs of virtual pods that have a twin or are about to get one."""
    ended: set[str] = field(default_factory=set)
    copied_status: dict[str, bytes] = field(default_factory=dict)
    """Last status that was copied, by the twin's UID."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self.work())
            group.create_task(follow(self.virtual, "fieldSelector=spec.nodeName!%3D", self.on_pod))
            group.create_task(follow(self.physical, f"labelSelector={TWIN}", self.on_twin))

    def on_pod(self, type: str, pod: Object) -> None:
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        if type == "DELETED" or not node.startswith(self.prefix):
            return
        path, uid = f"/api/v1/namespaces/{self.mount}/pods", metadata["uid"]
        if "deletionTimestamp" in metadata:
            if uid not in self.ended:
                self.ended.add(uid)
                body = {"gracePeriodSeconds": metadata["deletionGracePeriodSeconds"]}
                self.jobs.put_nowait((self.physical, "DELETE", f"{path}/{twin_name(metadata)}", body, JSON))
        elif uid not in self.created:
            self.created.add(uid)
            self.jobs.put_nowait((self.physical, "POST", path, twin(pod, node.removeprefix(self.prefix)), JSON))

    def on_twin(self, type: str, pod: Object) -> None:
        metadata, status = pod["metadata"], pod["status"]
        annotations = metadata["annotations"]
        path = f"/api/v1/namespaces/{annotations[NAMESPACE]}/pods/{annotations[NAME]}"
        if type == "DELETED":
            self.jobs.put_nowait((self.virtual, "DELETE", path, {"gracePeriodSeconds": 0}, JSON))
        elif status["phase"] != "Pending" and self.copied_status.get(metadata["uid"]) != (
            encoded := json.encode(status)
        ):
            self.copied_status[metadata["uid"]] = encoded
            self.jobs.put_nowait((self.virtual, "PATCH", f"{path}/status", {"status": status}, MERGE))

    async def work(self) -> None:
        while True:
            session, method, path, body, type = await self.jobs.get()
            headers = {"Content-Type": type}
            async with session.request(method, path, data=json.encode(body), headers=headers) as response:
                text = await response.read()
                if response.status >= 400:
                    print(method, path, text.decode(), file=sys.stderr)


def twin(pod: Object, node: str) -> Object:
    metadata = pod["metadata"]
    excluded = ("serviceAccountName", "serviceAccount", "priority")
    spec = {key: value for key, value in pod["spec"].items() if key not in excluded}
    return {
        "metadata": {
            "name": twin_name(metadata),
            "labels": {**metadata["labels"], TWIN: ""},
            "annotations": {NAME: metadata["name"], NAMESPACE: metadata["namespace"]},
        },
        "spec": {**spec, "nodeName": node, "automountServiceAccountToken": False},
    }


def twin_name(metadata: Object) -> str:
    whole = f"{metadata['namespace']}/{metadata['name']}"
    return f"{metadata['name'][:30]}-{hashlib.md5(whole.encode()).hexdigest()}"


async def follow(session: aiohttp.ClientSession, query: str, see: Callable[[str, Object], None]) -> None:
    """Call `see` for all pods and their changes. When the server ends a watch, continue from the last version."""
    async with session.get(f"/api/v1/pods?{query}") as response:
        page = json.decode(await response.read())
    for pod in page["items"]:
        see("ADDED", pod)
    version = page["metadata"]["resourceVersion"]
    while True:
        partial = b""
        async with session.get(f"/api/v1/pods?{query}&watch=1&resourceVersion={version}") as response:
            async for chunk in response.content.iter_any():
                *lines, partial = (partial + chunk).split(b"\n")
                for line in lines:
                    event = json.decode(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    see(event["type"], event["object"])


async def session_of(kubeconfig: str) -> aiohttp.ClientSession:
    access = load_access([Path(kubeconfig)], environ=os.environ)
    return aiohttp.ClientSession(
        access.server,
        headers=await access.credentials.headers(),
        connector=aiohttp.TCPConnector(ssl=access.credentials.ssl_context() or True, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=1 << 22,
    )


async def main(virtual: str, physical: str, prefix: str, mount: str) -> None:
    async with await session_of(virtual) as virtual_session, await session_of(physical) as physical_session:
        await Relay(virtual_session, physical_session, prefix, mount).run()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
