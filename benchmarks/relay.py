"""The least that anything between two clusters can do: one create below, one status patch above.

    python -m benchmarks.relay VIRTUAL PHYSICAL PREFIX MOUNT

takes two kubeconfigs, what the names of virtual nodes begin with, and the namespace for twins.  It is the limit that
the syncer is held against: no cache, no rules, no retries, no safety, and nothing of ours but the way in.
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
"""The label of what it made."""
NAME, NAMESPACE = "benchmarks/name", "benchmarks/namespace"
"""Annotations of a twin: whose it is."""

Object = dict[str, Any]
Job = tuple[aiohttp.ClientSession, str, str, Any, str]
"""Where to, the method, the path, the body and its type."""
JSON, MERGE = "application/json", "application/merge-patch+json"


@dataclass
class Relay:
    virtual: aiohttp.ClientSession
    physical: aiohttp.ClientSession
    prefix: str
    mount: str
    jobs: asyncio.Queue[Job] = field(default_factory=asyncio.Queue)
    made: set[str] = field(default_factory=set)
    """UIDs of the virtual pods that have, or are about to have, a twin."""
    ended: set[str] = field(default_factory=set)
    told: dict[str, bytes] = field(default_factory=dict)
    """By the twin's UID, the status that was passed on last."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self.work())
            group.create_task(follow(self.virtual, "fieldSelector=spec.nodeName!%3D", self.see_pod))
            group.create_task(follow(self.physical, f"labelSelector={TWIN}", self.see_twin))

    def see_pod(self, type: str, pod: Object) -> None:
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        if type == "DELETED" or not node.startswith(self.prefix):
            return
        path, uid = f"/api/v1/namespaces/{self.mount}/pods", metadata["uid"]
        if "deletionTimestamp" in metadata:
            if uid not in self.ended:
                self.ended.add(uid)
                body = {"gracePeriodSeconds": metadata["deletionGracePeriodSeconds"]}
                self.jobs.put_nowait((self.physical, "DELETE", f"{path}/{twin_name(metadata)}", body, JSON))
        elif uid not in self.made:
            self.made.add(uid)
            self.jobs.put_nowait((self.physical, "POST", path, twin(pod, node.removeprefix(self.prefix)), JSON))

    def see_twin(self, type: str, pod: Object) -> None:
        metadata, status = pod["metadata"], pod["status"]
        of = metadata["annotations"]
        path = f"/api/v1/namespaces/{of[NAMESPACE]}/pods/{of[NAME]}"
        if type == "DELETED":
            self.jobs.put_nowait((self.virtual, "DELETE", path, {"gracePeriodSeconds": 0}, JSON))
        elif status["phase"] != "Pending" and self.told.get(metadata["uid"]) != (news := json.encode(status)):
            self.told[metadata["uid"]] = news
            self.jobs.put_nowait((self.virtual, "PATCH", f"{path}/status", {"status": status}, MERGE))

    async def work(self) -> None:
        while True:
            session, method, path, body, type = await self.jobs.get()
            headers = {"Content-Type": type}
            async with session.request(method, path, data=json.encode(body), headers=headers) as answer:
                text = await answer.read()
                if answer.status >= 400:
                    print(method, path, text.decode(), file=sys.stderr)


def twin(pod: Object, node: str) -> Object:
    metadata = pod["metadata"]
    left_out = ("serviceAccountName", "serviceAccount", "priority")
    kept = {key: value for key, value in pod["spec"].items() if key not in left_out}
    return {
        "metadata": {
            "name": twin_name(metadata),
            "labels": {**metadata["labels"], TWIN: ""},
            "annotations": {NAME: metadata["name"], NAMESPACE: metadata["namespace"]},
        },
        "spec": {**kept, "nodeName": node, "automountServiceAccountToken": False},
    }


def twin_name(metadata: Object) -> str:
    whole = f"{metadata['namespace']}/{metadata['name']}"
    return f"{metadata['name'][:30]}-{hashlib.md5(whole.encode()).hexdigest()}"


async def follow(session: aiohttp.ClientSession, query: str, see: Callable[[str, Object], None]) -> None:
    """Show what there is and what becomes of it.  A server may end a watch at any time; the next goes on from there."""
    async with session.get(f"/api/v1/pods?{query}") as answer:
        found = json.decode(await answer.read())
    for pod in found["items"]:
        see("ADDED", pod)
    version = found["metadata"]["resourceVersion"]
    while True:
        begun = b""
        async with session.get(f"/api/v1/pods?{query}&watch=1&resourceVersion={version}") as answer:
            async for chunk in answer.content.iter_any():
                *lines, begun = (begun + chunk).split(b"\n")
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
    async with await session_of(virtual) as above, await session_of(physical) as below:
        await Relay(above, below, prefix, mount).run()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
