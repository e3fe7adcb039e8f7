"""Streams of containers with and without namespaces: exec, attach, connections, and ephemeral containers."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import NODES, PODS
from tapestry.local.descriptor_streams import wait_until_readable
from tapestry.local.isolation import isolation_failure, machine_isolation
from tapestry.local.pod_sandbox import Endpoint, PodNetwork, pod_sandbox
from tapestry.local.runtime import ContainerProcess, StreamRejected

from .test_process_kubelet import FOR_EVER, container_of, is_over, is_ready, new_pod, phase
from .worlds import World, new_cluster

MEBIBYTE = 1 << 20


FAILURES: list[str] = []
"""Why this machine has no namespaces for containers, once it is known; an empty string if it has."""


async def require_namespaces(folder: Path) -> None:
    """Skip a test if this machine has no namespaces for containers, but fail in CI."""
    if not FAILURES:
        FAILURES.append(await isolation_failure(machine_isolation(folder, os.environ), folder))
    if FAILURES[0]:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(FAILURES[0])


@pytest.fixture(params=["isolated", "plain"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    isolated = request.param == "isolated"
    if isolated:
        await require_namespaces(tmp_path)
    async with new_cluster(tmp_path, run_pods=True, isolated=isolated) as world:
        yield world


@pytest.fixture
async def isolated_world(tmp_path: Path) -> AsyncIterator[World]:
    await require_namespaces(tmp_path)
    async with new_cluster(tmp_path, isolated=True) as world:
        yield world


async def started(world: World, pod: Object) -> Object:
    await world.client.create(PODS, pod)
    return await world.wait_for_pod(pod["metadata"]["name"], is_ready)


async def everything(process: ContainerProcess) -> tuple[int, bytes, bytes]:
    """Return exit code and outputs of a process that gets no more input."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        outputs = [group.create_task(read_all(each)) for each in (process.read_stdout, process.read_stderr)]
    code = await process.wait()
    await process.close()
    return code, outputs[0].result(), outputs[1].result()


async def read_all(read: object) -> bytes:
    parts = []
    while part := await read():  # type: ignore[operator]
        parts.append(part)
    return b"".join(parts)


async def shell(world: World, pod: Object, script: str) -> tuple[int, bytes, bytes]:
    command = ["sh", "-c", script]
    return await everything(await world.runtime.exec(pod, "c", command, stdin=False, terminal=False))


async def read_until(process: ContainerProcess, text: bytes) -> bytes:
    found = b""
    async with asyncio.timeout(30):
        while text not in found:
            data = await process.read_stdout()
            assert data, found
            found += data
    return found


# -- exec


async def test_exec_has_environment_volumes_and_exit_code_of_container(world: World) -> None:
    volumes = [{"name": "e", "emptyDir": {}}]
    container = {"env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "e", "mountPath": "/mnt/e"}]}
    pod = await started(world, new_pod(f"echo kept > /mnt/e/x; {FOR_EVER}", volumes=volumes, container=container))
    code, output, errors = await shell(world, pod, "cat /mnt/e/x; echo $A; pwd; echo problem >&2; exit 7")
    assert (code, output.split()[:2], errors) == (7, [b"kept", b"b"], b"problem\n")
    assert (await shell(world, pod, "kill -9 $$"))[0] == 137
    with pytest.raises(StreamRejected, match="No such file"):
        await world.runtime.exec(pod, "c", ["no-such-program"], stdin=False, terminal=False)
    with pytest.raises(StreamRejected, match="not running"):
        await world.runtime.exec(pod, "other", ["true"], stdin=False, terminal=False)


async def test_exec_passes_input_unchanged_and_waits_for_slow_reader(world: World) -> None:
    pod = await started(world, new_pod(FOR_EVER))
    process = await world.runtime.exec(pod, "c", ["cat"], stdin=True, terminal=False)
    sent = os.urandom(8 * MEBIBYTE)

    async def write() -> None:
        for start in range(0, len(sent), MEBIBYTE):
            await process.write_stdin(sent[start : start + MEBIBYTE])
        process.close_stdin()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        code, output, _ = await everything(process)
    assert code == 0
    assert output == sent


async def test_exec_terminal_has_the_requested_size(world: World) -> None:
    pod = await started(world, new_pod(FOR_EVER))
    script = 'trap "stty size" WINCH; tty; test -t 0 && echo terminal; while :; do sleep 0.05; done'
    process = await world.runtime.exec(pod, "c", ["sh", "-c", script], stdin=True, terminal=True)
    assert (await read_until(process, b"terminal\r\n")).startswith(b"/dev/pts/")
    process.resize(101, 37)
    assert b"37 101\r\n" in await read_until(process, b"37 101\r\n")
    await process.write_stdin(b"\x03")
    assert await asyncio.wait_for(process.wait(), 30) == 130
    await process.close()


async def test_closed_exec_and_deleted_pod_leave_no_process(world: World) -> None:
    pod = await started(world, new_pod(FOR_EVER))
    marker = f"sleep 98{os.getpid()}"
    processes = [
        await world.runtime.exec(pod, "c", marker.split(), stdin=False, terminal=terminal) for terminal in (False, True)
    ]
    await processes[0].close()
    wait_for_commands(marker, 1)
    await world.client.delete(PODS, pod, grace_seconds=0)
    assert await asyncio.wait_for(processes[1].wait(), 30) == 137
    await world.wait_until_gone("p")
    wait_for_commands(marker, 0)


def wait_for_commands(text: str, count: int) -> None:
    """Wait until so many processes have this command line; the kernel kills some of them a little later."""
    due = time.monotonic() + 30
    while running_commands(text) != count and time.monotonic() < due:
        threading.Event().wait(0.05)  # arbitrary processes cannot be watched
    assert running_commands(text) == count


def running_commands(text: str) -> int:
    """Return the number of processes with this command line; not those of the program that starts containers."""
    found = 0
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += each.read_bytes().replace(b"\0", b" ").decode().strip() == text
        except OSError:  # it has ended
            continue
    return found


# -- attach


async def test_attached_clients_share_output_and_input(world: World) -> None:
    container = {"stdin": True, "stdinOnce": True}
    script = "while read line; do echo got $line; done; echo end; exit 5"
    pod = await started(world, new_pod(script, container=container))
    first, second = [await world.runtime.attach(pod, "c", stdin=stdin, terminal=False) for stdin in (True, False)]
    await first.write_stdin(b"one\n")
    for each in (first, second):
        await read_until(each, b"got one\n")
    await first.close()  # stdinOnce: the input ends with its first client
    assert await read_until(second, b"end\n") == b"end\n"
    assert await asyncio.wait_for(second.wait(), 30) == 0  # whatever the exit code of the container is
    assert await second.read_stdout() == b""
    assert await world.log("p", previous="true") == "got one\nend\n"


async def test_container_with_terminal_is_attached_like_one(world: World) -> None:
    shell = {"stdin": True, "tty": True}
    pod = await started(world, new_pod("exec sh -i", container=shell, terminationGracePeriodSeconds=1))
    client = await world.runtime.attach(pod, "c", stdin=True, terminal=True)
    client.resize(80, 25)
    await client.write_stdin(b"stty size; echo st''op\n")
    assert b"25 80" in await read_until(client, b"stop")
    await client.close()
    assert is_ready(await world.client.get(PODS, "p", "default"))


# -- connections


SERVER = (
    "import socket; s = socket.create_server(('127.0.0.1', 8099));"
    "print('up', flush=True)\nwhile True:\n c = s.accept()[0]; c.sendall(c.recv(9).upper()); c.close()"
)


async def test_connection_reaches_loopback_of_the_pod(isolated_world: World) -> None:
    world, pods = isolated_world, []
    for name in ("p", "q"):  # both use the same port
        pod = new_pod("", name, container={"command": [str(python()), "-c", SERVER]})
        pods.append(await started(world, pod))
        assert await world.first_line(name) == "up\n"
    for pod in pods:
        reader, writer = await world.runtime.dial(pod, 8099)
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.read(), 30) == b"HELLO"
        writer.close()
    with pytest.raises(StreamRejected, match="refused"):
        await world.runtime.dial(pods[0], 8098)


def python() -> Path:
    return Path("/proc/self/exe").resolve()


async def test_plain_pod_serves_declared_ports_only(tmp_path: Path) -> None:
    async with new_cluster(tmp_path, run_pods=True) as world:
        pod = await started(world, new_pod(FOR_EVER))
        with pytest.raises(StreamRejected, match="does not declare the port 22"):
            await world.runtime.dial(pod, 22)


async def test_isolated_pod_reaches_api_server_but_not_the_machine(isolated_world: World) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    script = f"""
import os, socket, ssl, json, urllib.request
config = json.load(open(os.environ["KUBECONFIG"]))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
context = ssl.create_default_context(cafile=cluster["certificate-authority"])
token = open(user["tokenFile"]).read()
request = urllib.request.Request(cluster["server"] + "/apis", headers={{"Authorization": "Bearer " + token}})
print(urllib.request.urlopen(request, context=context).status)
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5)
except OSError as error:
    print(type(error).__name__)
"""
    pod = new_pod("", restartPolicy="Never", container={"command": [str(python()), "-c", script.replace("$", "$$")]})
    async with server:
        await isolated_world.client.create(PODS, pod)
        ended = await isolated_world.wait_for_pod("p", is_over)
    assert phase(ended) == "Succeeded", await isolated_world.log("p")
    assert await isolated_world.log("p") == "200\nConnectionRefusedError\n"


async def test_declared_port_and_probes_reach_an_isolated_pod(isolated_world: World) -> None:
    command = [str(python()), "-m", "http.server", "8097"]
    probe = {"httpGet": {"port": 8097}, "periodSeconds": 1}
    liveness = {"tcpSocket": {"port": 8097}, "periodSeconds": 1, "failureThreshold": 30}
    ports = [{"containerPort": 8097}]
    container = {"command": command, "ports": ports, "readinessProbe": probe, "livenessProbe": liveness}
    pod = await started(isolated_world, new_pod("", container=container))
    reader, writer = await asyncio.open_connection(pod["status"]["podIP"], 8097)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    assert b"200 OK" in await asyncio.wait_for(reader.read(), 30)
    writer.close()


def test_relay_survives_reset_connections_on_uvloop(tmp_path: Path) -> None:
    """A client that closes its connection without reading it resets it; that does not end the pod."""

    ended: list[None] = []

    async def send_data(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"data")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.append(None)

    async def scenario() -> None:
        await require_namespaces(tmp_path)
        server = await asyncio.start_server(send_data, "127.0.0.1", 0)
        endpoint = Endpoint(*server.sockets[0].getsockname())
        async with pod_sandbox("pod") as sandbox, asyncio.TaskGroup() as group:
            network = PodNetwork(sandbox, "127.96.0.1", group)
            assert await network.allow_servers([endpoint]) == []
            for _ in range(5):
                with await sandbox.new_socket() as client:
                    await asyncio.get_running_loop().sock_connect(client, endpoint)
                    await wait_until_readable(client.fileno())
            for _ in range(5):  # by then, the others have ended
                reader, writer = await sandbox.connect(*endpoint)
                writer.write_eof()
                assert await asyncio.wait_for(reader.read(), 30) == b"data"
                writer.close()
            network.close()
        assert len(ended) == 10
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


# -- isolation


async def test_isolated_container_cannot_change_the_machine(isolated_world: World) -> None:
    pod = await started(isolated_world, new_pod(FOR_EVER))
    of_the_machine = isolated_world.folder / "file"  # below /tmp, where our own program may be, too
    of_the_machine.touch()
    script = f"""
for file in /etc/x /usr/x /x {isolated_world.folder}/x /proc/sys/kernel/core_pattern; do
    (echo > $file) 2>/dev/null && echo wrote $file
done
mount -t tmpfs none /mnt 2>/dev/null && echo mounted
unshare -Urm true 2>/dev/null && echo new namespace
cat {isolated_world.folder}/data/pki/* {Path.home()}/.bashrc 2>/dev/null
touch $HOME/own /tmp/own && ls /tmp/own {of_the_machine} 2>/dev/null
grep CapEff /proc/self/status
hostname
ls /proc | grep -c '^[0-9]'
"""
    code, output, _ = await shell(isolated_world, pod, script)
    *lines, processes = output.decode().splitlines()
    assert (code, lines) == (0, ["/tmp/own", "CapEff:\t0000000000000000", "p"])
    assert int(processes) < 10  # only its own


async def test_user_has_the_id_of_the_pod(isolated_world: World) -> None:
    context = {"runAsUser": 65532, "runAsNonRoot": True}
    pod = await started(isolated_world, new_pod(FOR_EVER, securityContext=context))
    code, output, _ = await shell(
        isolated_world, pod, "id -u; touch $HOME/f && stat -c %u $HOME/f; grep CapEff /proc/self/status"
    )
    assert (code, output.split()) == (0, [b"65532", b"65532", b"CapEff:", b"0000000000000000"])


async def test_pid_namespace_ends_with_container(isolated_world: World) -> None:
    marker = f"sleep 97{os.getpid()}"
    script = f"setsid {marker} & trap 'exit 0' TERM; until grep -l ^sleep /proc/*/comm; do :; done; {FOR_EVER}"
    pod = await started(isolated_world, new_pod(script))
    await isolated_world.first_line("p")
    assert running_commands(marker) == 1
    await isolated_world.client.delete(PODS, pod, grace_seconds=5)
    await isolated_world.wait_until_gone("p")
    wait_for_commands(marker, 0)


PARENT = """
import asyncio, os, sys
from pathlib import Path
from tapestry.local.container_commands import ContainerMount, Launch
from tapestry.local.container_processes import PodEnvironment, container_process, start_command
from tapestry.local.pod_sandbox import pod_sandbox

folder, seconds = Path(sys.argv[1]), sys.argv[2]

async def main():
    mounts = [ContainerMount("/tmp", folder / "tmp", read_only=False)]
    launch = Launch(["sleep", seconds], {"PATH": os.defpath}, Path("/"), mounts, limits={})
    async with pod_sandbox("pod", shares_pids=True) as sandbox:
        environment = PodEnvironment(sandbox, folder / "root", ())
        async with container_process(launch, environment, print) as running:
            await start_command(running, launch, stdin=False, terminal=True)
            print("up", flush=True)
            await running.process.wait()

asyncio.run(main())
"""


def test_nothing_is_left_after_the_kubelet_is_killed(tmp_path: Path) -> None:
    asyncio.run(require_namespaces(tmp_path))
    for name in ("root", "tmp"):
        (tmp_path / name).mkdir()
    marker = f"sleep 96{os.getpid()}"
    command = [sys.executable, "-c", PARENT, str(tmp_path), marker.split()[1]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        wait_for_commands(marker, 2)
        parent.kill()
    wait_for_commands(marker, 0)


async def test_sub_path_cannot_leave_its_volume(isolated_world: World) -> None:
    mounts = [{"name": "e", "mountPath": "/e"}]
    inner = [{"name": "e", "mountPath": "/inner", "subPath": "link"}]
    init = {"name": "i", "image": "i", "command": ["ln", "-s", "/etc", "/e/link"], "volumeMounts": mounts}
    volumes = [{"name": "e", "emptyDir": {}}]
    pod = new_pod("ls /inner", initContainers=[init], volumes=volumes, container={"volumeMounts": inner})
    await isolated_world.client.create(PODS, {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}})
    ended = await isolated_world.wait_for_pod("p", is_over)
    assert "link is a symbolic link" in container_of(ended)["state"]["terminated"]["message"]


async def test_limits_are_enforced(isolated_world: World) -> None:
    script = "data = bytearray(300 << 20)"
    limits = {"resources": {"limits": {"memory": "128Mi"}}}
    pod = new_pod("", restartPolicy="Never", container={"command": [str(python()), "-c", script], **limits})
    await isolated_world.client.create(PODS, pod)
    ended = await isolated_world.wait_for_pod("p", is_over)
    assert phase(ended) == "Failed"
    assert "MemoryError" in await isolated_world.log("p")


@pytest.mark.long
async def test_number_of_processes_is_limited(isolated_world: World) -> None:
    script = "import os, time\nfor _ in range(3000):\n    os.fork() or time.sleep(60)"
    pod = new_pod("", restartPolicy="Never", container={"command": [str(python()), "-c", script]})
    await isolated_world.client.create(PODS, pod)
    ended = await isolated_world.wait_for_pod("p", is_over)
    assert phase(ended) == "Failed"
    assert "BlockingIOError" in await isolated_world.log("p")


async def test_mount_over_a_folder_of_the_machine_is_private(isolated_world: World) -> None:
    mounts = [{"name": "e", "mountPath": path} for path in ("/etc", "/usr/share/new/folder")]
    script = "echo own > /etc/hosts; cat /usr/share/new/folder/hosts; test -d /usr/share/doc && echo doc"
    before = machine_files()
    pod = new_pod(script, volumes=[{"name": "e", "emptyDir": {}}], container={"volumeMounts": mounts})
    await isolated_world.client.create(PODS, {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}})
    await isolated_world.wait_for_pod("p", is_over)
    assert await isolated_world.log("p") == "own\ndoc\n"
    assert machine_files() == before


def machine_files() -> tuple[str, bool]:
    return Path("/etc/hosts").read_text(), Path("/usr/share/new").exists()


async def test_usage_is_that_of_the_command_and_its_descendants(world: World) -> None:
    inner = "x = b'x' * (100 << 20); print(1, flush=True); input()"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    container = {"command": [str(python()), "-c", script], "stdin": True}
    await started(world, new_pod("", container=container))
    await world.first_line("p")
    (usage,) = world.runtime.usage(await world.client.get(NODES, "n"))
    assert 100 << 20 < usage.total().memory < 140 << 20
    assert usage.total().core_seconds > 0


# -- ephemeral containers


async def test_ephemeral_container_runs_beside_its_target(world: World) -> None:
    pod = await started(world, new_pod(FOR_EVER))
    debugger = {"name": "debug", "image": "busybox", "stdin": True, "tty": True, "targetContainerName": "c"}
    body = {"spec": {"ephemeralContainers": [debugger]}}
    await world.client.patch(PODS, pod, body, subresource="ephemeralcontainers")
    pod = await world.wait_for_pod("p", lambda pod: "running" in ephemeral_state(pod))
    client = await world.runtime.attach(pod, "debug", stdin=True, terminal=True)
    await client.write_stdin(b"cat /proc/*/cmdline; exit 3\n")
    output = await asyncio.wait_for(read_all(client.read_stdout), 30)
    assert FOR_EVER.encode() in output
    ended = await world.wait_for_pod("p", lambda pod: "terminated" in ephemeral_state(pod))
    assert ephemeral_state(ended)["terminated"]["exitCode"] == 3
    assert is_ready(ended)


async def test_rejected_ephemeral_container_waits_with_reason(isolated_world: World) -> None:
    pod = await started(isolated_world, new_pod(FOR_EVER))
    debugger = {"name": "debug", "image": "busybox", "securityContext": {"privileged": True}}
    body = {"spec": {"ephemeralContainers": [debugger]}}
    await isolated_world.client.patch(PODS, pod, body, subresource="ephemeralcontainers")
    found = await isolated_world.wait_for_pod("p", lambda pod: "waiting" in ephemeral_state(pod))
    assert ephemeral_state(found)["waiting"]["reason"] == "Refused"


def ephemeral_state(pod: Object) -> Object:
    found: Object = value_at(pod, "status", "ephemeralContainerStatuses", 0, "state", default={})
    return found
