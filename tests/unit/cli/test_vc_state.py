"""`tapestry vc suspend|resume|snapshot|restore|wait|watch`."""

import json

from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Code, ServiceError

from .service_commands import Commands, commands

__all__ = ["commands"]


async def test_suspend_and_resume_show_the_phase(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    words = ("--create-snapshot", "--drain-workloads", "--drain-timeout", "60")
    assert await commands.output("vc", "suspend", "blue", *words) == "virtual cluster shop/blue is Suspended\n"
    request = next(each.request for each in commands.service.calls if each.method == "SuspendVCluster")
    assert (request.create_snapshot, request.drain_workloads, request.drain_timeout_seconds) == (True, True, 60)
    assert await commands.output("vc", "resume", "blue") == "virtual cluster shop/blue is Running\n"


async def test_snapshot_is_listed_and_restored(commands: Commands) -> None:
    await commands.output("vc", "create", "blue")
    printed = await commands.output("vc", "snapshot", "blue", "--snapshot-name", "before")
    assert printed.splitlines()[1].split()[:4] == ["snap-0", "before", "blue", "Ready"]
    row = (await commands.output("vc", "snapshots", "blue")).splitlines()[1].split()
    assert row[:4] == ["snap-0", "before", "blue", "Ready"]
    assert "is Running" in await commands.output("vc", "restore", "blue", "--snapshot", "snap-0")
    assert "--new-namespace needs --new-name" in await commands.error(
        "vc", "restore", "blue", "--snapshot", "snap-0", "--new-namespace", "other"
    )


async def test_wait_ends_in_the_requested_phase(commands: Commands) -> None:
    await commands.output("vc", "create", "blue", "--no-wait")
    changed = api.VCluster(name="blue", resource_version="2")
    changed.status.phase = api.PHASE_RUNNING
    commands.service.events.append(api.WatchVClusterResponse(type=2, vcluster=changed))
    assert await commands.output("vc", "wait", "blue") == "virtual cluster shop/blue is Running\n"
    gone = api.VCluster(name="blue", resource_version="3")
    commands.service.events.append(api.WatchVClusterResponse(type=3, vcluster=gone))
    assert await commands.output("vc", "wait", "blue", "--for", "deleted") == "virtual cluster shop/blue is Deleted\n"
    assert await commands.output("vc", "wait", "red", "--for", "deleted") == "virtual cluster shop/red is Deleted\n"
    error = await commands.error("vc", "wait", "blue", "--for", "suspended", "--timeout", "5s")
    assert error == "Error: virtual cluster shop/blue is Deleted"


async def test_watch_prints_each_change(commands: Commands) -> None:
    changed = api.VCluster(name="blue", resource_version="2")
    changed.status.phase, changed.status.message = api.PHASE_CREATING, "host is busy"
    commands.service.events.append(api.WatchVClusterResponse(type=1, vcluster=changed))
    commands.service.error = ServiceError(Code.OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED", "list again")
    result = await commands.run("vc", "watch")
    assert result.stdout.split() == ["ADDED", "blue", "Creating", "host", "is", "busy"]
    assert result.stderr == "Error: list again (RESOURCE_VERSION_EXPIRED)\n"
    result = await commands.run("vc", "watch", "blue", "-o", "json")
    assert json.loads(result.stdout)["vcluster"]["status"]["message"] == "host is busy"
