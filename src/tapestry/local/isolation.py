"""Isolation that this machine can give to the containers of a process node.

Containers need user, mount, PID and network namespaces.  Some machines do not permit them to all users, and some
containers do not permit them at all; `isolation_failure` tries.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tapestry
from tapestry.local.container_commands import ContainerMount, Isolation, Launch
from tapestry.local.container_processes import PodEnvironment, container_process
from tapestry.local.pod_sandbox import pod_sandbox
from tapestry.local.world_folder import WorldFolder

DEFAULT_HOME = "/tmp"


def machine_isolation(data: Path, environ: Mapping[str, str]) -> Isolation:
    """Return what containers see of this machine: not the user's home folder, and not the data of this world."""
    home = os.path.realpath(environ.get("HOME") or DEFAULT_HOME)
    if home == "/" or not Path(home).is_dir():
        home = DEFAULT_HOME
    is_in_world = WorldFolder(data.parent).record_file.exists()
    hidden = os.path.realpath(data.parent if is_in_world else data)
    own_program = (sys.prefix, sys.base_prefix, Path(tapestry.__file__).parents[1])
    visible = sorted({os.path.realpath(each) for each in own_program})
    return Isolation(home, (hidden,), tuple(visible))


async def isolation_failure(isolation: Isolation, folder: Path) -> str:
    """Run a container in the existing `folder`; return why it failed, or an empty string."""
    with tempfile.TemporaryDirectory(dir=folder) as root, tempfile.TemporaryDirectory(dir=folder) as home:
        mounts = [
            ContainerMount(each, Path(home), read_only=False) for each in dict.fromkeys((DEFAULT_HOME, isolation.home))
        ]
        mounts += [ContainerMount(each, Path(each)) for each in isolation.visible if isolation.hides(each)]
        launch = Launch(["true"], {"PATH": os.defpath}, Path("/"), mounts, limits={})
        try:
            async with pod_sandbox("isolation") as sandbox:
                environment = PodEnvironment(sandbox, Path(root), isolation.hidden)
                async with container_process(launch, environment, lambda _: None) as running:
                    code = await running.process.wait()
        except OSError as error:
            return str(error)
    return f"a test container exited with {code}" if code else ""
