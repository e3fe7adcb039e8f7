"""Program that starts a container: it enters namespaces, builds the file system and runs the command.

The kubelet runs `main` with `python -I -S`, so it uses the standard library only.  It takes no settings from its
environment or from files, because a pod controls some of them.

  sandbox    hold the user, network, IPC and UTS namespaces of a pod, and open sockets in them
  container  run a command in the namespaces of a pod, with its own mounts and processes
  exec       run a command in the namespaces of a container
  plain      run a command without namespaces

Inside, the user has the ID that the pod requests, by default the same as outside, and no capabilities.  The host's
files are read-only; home and data folders, /tmp, /run, /dev and /proc are replaced.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Any, NoReturn, TypedDict

from tapestry.local.container_root import MAX_PROCESSES, Root, build_root
from tapestry.local.system_calls import call, libc, system_call, write_file

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
KEYCTL_JOIN_SESSION_KEYRING = 1
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
TERMINAL_MESSAGE = b"terminal"
"""Message with the descriptor of a terminal."""
START_FAILED_CODE = 128
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SANDBOX_SYSCTLS = {"net/ipv4/ip_unprivileged_port_start": "0", "user/max_user_namespaces": "0"}
"""Settings of a pod's namespaces: containers have no capabilities, and cannot get them in another namespace."""


class Command(TypedDict):
    command: list[str]
    environment: dict[str, str]
    folder: str
    terminal: bool
    limits: dict[str, int]
    """Resource limits, by the name without `RLIMIT_`."""
    namespaces: list[int]
    """Namespaces to enter, as file descriptors; the user namespace first."""
    root: Root | None
    """File system to build; None in exec and plain mode."""
    new_pids: bool
    """Request for a new PID namespace."""


def main() -> NoReturn:
    mode, descriptor, *rest = sys.argv[1:]
    if mode == "sandbox":
        run_sandbox(socket.socket(fileno=int(descriptor)), *rest)
        os._exit(0)
    status = socket.socket(fileno=int(descriptor))
    status.set_inheritable(False)
    try:
        with open(int(rest[0])) as file:
            command: Command = json.load(file)
        code = run_plain(command, status) if mode == "plain" else run_isolated(command, status)
    except OSError as error:
        report_error(status, error)
    os._exit(code)


def report_error(status: socket.socket, error: OSError) -> NoReturn:
    with suppress(OSError):
        status.send(str(error).encode())
    os._exit(START_FAILED_CODE)


# -- sandbox


def run_sandbox(control: socket.socket, hostname: str, user: str, shares_pids: str) -> None:
    """Create the namespaces of a pod, send them, and send a socket for each received byte until the end of input."""
    try:
        namespaces = new_sandbox(hostname, int(user), shares_pids=shares_pids == "true")
    except OSError as error:
        report_error(control, error)
    socket.send_fds(control, [b"\0"], namespaces)
    for each in namespaces:
        os.close(each)
    while control.recv(1):
        with socket.socket() as made:
            socket.send_fds(control, [b"s"], [made.fileno()])


def new_sandbox(hostname: str, user: int, *, shares_pids: bool) -> list[int]:
    own_user, group = os.geteuid(), os.getegid()
    call("unshare", NEWUSER)
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"{user} {own_user} 1")
    write_file("/proc/self/gid_map", f"{group} {group} 1")
    call("unshare", NEWNET | NEWIPC | NEWUTS | (NEWPID if shares_pids else 0))
    socket.sethostname(hostname[:63])
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
    for name, value in SANDBOX_SYSCTLS.items():
        with suppress(OSError):  # older kernels do not have it
            write_file(f"/proc/sys/{name}", value)
    found = [os.open(f"/proc/self/ns/{each}", os.O_RDONLY) for each in ("user", "net", "ipc", "uts")]
    if shares_pids:
        reaper = os.fork()
        if reaper == 0:
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps its children
            while True:
                signal.pause()
        found.append(os.open(f"/proc/{reaper}/ns/pid", os.O_RDONLY))
    return found


# -- processes


def run_plain(command: Command, status: socket.socket) -> int:
    if not command["terminal"]:
        execute(command, status)
    return run_child(lambda: execute(command, status), status)


def run_isolated(command: Command, status: socket.socket) -> int:
    """Enter or create the namespaces and run the command there; return its exit code."""
    for each in command["namespaces"]:
        call("setns", each, 0)
        os.close(each)
    root = command["root"]
    if root is None:
        return run_child(lambda: execute(command, status), status)
    call("unshare", NEWNS | (NEWPID if command["new_pids"] else 0))
    return run_child(lambda: run_init(command, root, status), status)


def run_init(command: Command, root: Root, status: socket.socket) -> NoReturn:
    """Be the first process of a container: build its root, run the command and reap its descendants."""
    build_root(root)
    own = [os.open(f"/proc/self/ns/{each}", os.O_RDONLY) for each in ("mnt", "pid")]
    socket.send_fds(status, [b"\0"], own)
    for each in own:
        os.close(each)
    call("prctl", PR_SET_CHILD_SUBREAPER, 1)
    code = run_child(lambda: execute(command, status), status)
    kill_descendants()
    os._exit(code)


def run_child(work: Any, status: socket.socket) -> int:
    """Run `work`, which does not return, in a child that ends with this process; return its exit code.

    Signals are forwarded to the child.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    child = os.fork()
    if child == 0:
        try:
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
            work()
        except OSError as error:
            report_error(status, error)
        os._exit(START_FAILED_CODE)
    status.close()

    def forward(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED_SIGNALS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    while True:
        ended, result = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(result)
            return code if code >= 0 else 128 - code


def kill_descendants() -> None:
    """Kill what the command left behind; in a PID namespace of its own, the kernel does the same."""
    if os.getpid() == 1:
        return
    with suppress(ChildProcessError, FileNotFoundError):
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for each in children.read().split():
                    os.kill(int(each), signal.SIGKILL)
            os.wait()


def execute(command: Command, status: socket.socket) -> NoReturn:
    """Become the command, without capabilities and in its own session if it was started in namespaces."""
    is_isolated = bool(command["namespaces"])
    if is_isolated or command["terminal"]:
        os.setsid()
    if command["terminal"]:
        open_terminal(status)
    for name, limit in command["limits"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (value, value))
    if is_isolated:
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
        leave_session_keyring()
        drop_capabilities()
    os.umask(0o022)
    os.chdir(command["folder"])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command["command"][0], command["command"], command["environment"])
    except OSError as error:
        raise OSError(error.errno, f"exec {command['command'][0]}: {os.strerror(error.errno or 0)}") from error


def open_terminal(status: socket.socket) -> None:
    """Make a new terminal of this mount namespace that of the session, and send the other end."""
    other_end, terminal = os.openpty()
    socket.send_fds(status, [TERMINAL_MESSAGE], [other_end])
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for standard_stream in range(3):
        os.dup2(terminal, standard_stream)
    os.close(terminal)
    os.close(other_end)


def leave_session_keyring() -> None:
    """Hide the keys of the user's session, unless no process can read keys."""
    try:
        system_call("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def drop_capabilities() -> None:
    """Let no program that is executed from now on have capabilities."""
    for number in range(64):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:  # the kernel has no more
                break
            raise OSError(ctypes.get_errno(), "prctl: capabilities cannot be dropped")
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
