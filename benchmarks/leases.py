"""Cost of 1,000 idle virtual nodes: leases renewed every 10 s on a real kube-apiserver.

The measured process has one delay queue and a few workers instead of a task per node: a Controller whose reconciler
renews a Lease and requeues it for the next renewal.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.fresh import fresh
from benchmarks.table import Row, alone, say
from tapestry.local.kubernetes import AssetsMissing, ControlPlane, find_assets

NODES = 1_000
SECONDS = 30
WHAT = f"{NODES:,} node leases renewed every 10 s"


def rows() -> Iterator[Row]:
    try:
        assets = find_assets(os.environ)
    except AssetsMissing as error:
        yield Row(WHAT, None, "core", at_most=0.1, detail=str(error))
        return
    say("leases: starting etcd and kube-apiserver")
    with TemporaryDirectory() as folder, ControlPlane(Path(folder), assets) as plane:
        say(f"leases: making {NODES} leases, then renewing them for {SECONDS} s")
        found = fresh("benchmarks.sides.lease_renewals:renewed", plane.kubeconfig, NODES, SECONDS)
    yield Row(
        f"{WHAT}: CPU of ours",
        found["cores"],
        "core",
        at_most=0.1,
        detail=f"{found['renewals']} renewals in {SECONDS} s, {found['failures']} failed",
    )
    yield Row(f"{WHAT}: late by (p99)", found["late"] * 1000, "ms")


if __name__ == "__main__":
    alone(rows)
