"""Program that starts a container: it enters namespaces, builds the file system and runs the command.

The kubelet runs `main` with `python -I -S`, so this module uses the standard library only.  It takes no settings from
its environment or from files, because a pod controls some of them.

  sandbox    hold the user, network, IPC and UTS namespaces of a pod, and open sockets in them
  container  run a command in the namespaces of a pod, with its own mounts and processes
  exec       run a command in the namespaces of a container
  plain      run a command without namespaces

Inside, the user has the same ID as outside and no capabilities.  The host's files are read-only; home and data
folders, /tmp, /run, /dev and /proc are replaced.
"""

import ctypes
import errno
import fcntl
import json
import os
import posixpath
import resource
import signal
import socket
import stat
import struct
import sys
import termios
from contextlib import suppress
from typing import Any, NoReturn, TypedDict

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
START_FAILED_CODE = 128
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
REPLACED_FOLDERS = ("dev", "proc", "run", "tmp")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
READ_ONLY_PROC = ("sys", "bus", "fs", "irq")
MASKED_PROC = ("sysrq-trigger", "kcore", "keys", "timer_list")
SANDBOX_SYSCTLS = {"net/ipv4/ip_unprivileged_port_start": "0", "user/max_user_namespaces": "0"}
"""Settings of a pod's namespaces: containers have no capabilities, and cannot get them in another namespace."""
OLD_ROOT = "/.old"
MAX_ENTRIES = 2000
"""Limit of a folder's entries that are mounted one by one."""
MAX_PROCESSES = 1024
"""Limit of processes and threads in a container."""
PID_LIMIT_KERNEL = (6, 14)
"""First kernel in which every PID namespace has its own limit."""

libc = ctypes.CDLL(None, use_errno=True)


class Mount(TypedDict):
    path: str
    """Absolute path in the container."""
    source: str
    """Folder or file on the host."""
    sub_path: str
    """Path below the source that a pod chose; symbolic links are not followed."""
    read_only: bool


class Root(TypedDict):
    folder: str
    """Empty folder that becomes the root."""
    hidden: list[str]
    """Folders that are empty in the container."""
    mounts: list[Mount]


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


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; raise OSError."""
    values = [each.encode() if isinstance(each, str) else each for each in arguments]
    result: int = getattr(libc, name)(*values)
    if result < 0:
        number = ctypes.get_errno()
        where = f" {arguments[1]}" if name == "mount" else ""
        raise OSError(number, f"{name}{where}: {os.strerror(number)}")
    return result


# -- sandbox


def run_sandbox(control: socket.socket, hostname: str, shares_pids: str) -> None:
    """Create the namespaces of a pod, send them, and send a socket for each received byte until the end of input."""
    try:
        namespaces = new_sandbox(hostname, shares_pids=shares_pids == "true")
    except OSError as error:
        report_error(control, error)
    socket.send_fds(control, [b"\0"], namespaces)
    for each in namespaces:
        os.close(each)
    while control.recv(1):
        with socket.socket() as made:
            socket.send_fds(control, [b"s"], [made.fileno()])


def new_sandbox(hostname: str, *, shares_pids: bool) -> list[int]:
    user, group = os.geteuid(), os.getegid()
    call("unshare", NEWUSER)
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"{user} {user} 1")
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


def write_file(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# -- processes


def run_plain(command: Command, status: socket.socket) -> int:
    if not command["terminal"]:
        execute(command)
    return run_child(lambda: execute(command), status)


def run_isolated(command: Command, status: socket.socket) -> int:
    """Enter or create the namespaces and run the command there; return its exit code."""
    for each in command["namespaces"]:
        call("setns", each, 0)
        os.close(each)
    root = command["root"]
    if root is None:
        return run_child(lambda: execute(command), status)
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
    code = run_child(lambda: execute(command), status)
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


def execute(command: Command) -> NoReturn:
    """Become the command, without capabilities and in its own session if it was started in namespaces."""
    is_isolated = bool(command["namespaces"])
    if is_isolated or command["terminal"]:
        os.setsid()
    if command["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for name, limit in command["limits"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (value, value))
    if is_isolated:
        resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
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


def drop_capabilities() -> None:
    """Let no program that is executed from now on have capabilities."""
    for number in range(64):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:  # the kernel has no more
                break
            raise OSError(ctypes.get_errno(), "prctl: capabilities cannot be dropped")
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


# -- file system


def build_root(root: Root) -> None:
    """Replace the root of this mount namespace."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    sources = [(each, open_source(each)) for each in root["mounts"]]
    folder = root["folder"]
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for name in os.listdir("/"):
        if name not in REPLACED_FOLDERS:
            with suppress(OSError):  # what cannot be mounted is missing
                bind_entry(f"/{name}", f"{folder}/{name}", ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
    for name in (*REPLACED_FOLDERS, OLD_ROOT[1:]):
        os.mkdir(f"{folder}/{name}")
    mount("proc", f"{folder}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", f"{folder}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    build_devices(f"{folder}/dev")
    pivot_root(folder)
    limit_processes()
    restrict_proc()
    mimicked: list[str] = []
    for path in root["hidden"]:
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
            mimicked.append(path)
    for each, source in sources:
        mount_volume(each, source, mimicked)
    call("umount2", OLD_ROOT, MNT_DETACH)
    os.rmdir(OLD_ROOT)
    for path in ("/", *mimicked):
        set_attributes(path, ATTR_RDONLY)


def mount(source: str, target: str, type: str | None, flags: int, options: str | None = None) -> None:
    call("mount", source, target, type, ctypes.c_ulong(flags), options)


def set_attributes(path: str, attributes: int, *, recursive: bool = False) -> None:
    value = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    call("syscall", ctypes.c_long(SYS_MOUNT_SETATTR), AT_FDCWD, path, flags, value, ctypes.c_size_t(len(value)))


def pivot_root(folder: str) -> None:
    number = SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"pivot_root: not supported on {os.uname().machine}")
    call("syscall", ctypes.c_long(number), folder, f"{folder}{OLD_ROOT}")
    os.chdir("/")


def bind_entry(source: str, target: str, attributes: int) -> None:
    """Show a folder, file or symbolic link in another place."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    if attributes:
        set_attributes(target, attributes, recursive=True)


def build_devices(folder: str) -> None:
    mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        bind_entry(f"/dev/{name}", f"{folder}/{name}", 0)
    for name in ("pts", "shm"):
        os.mkdir(f"{folder}/{name}")
    mount("devpts", f"{folder}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    mount("tmpfs", f"{folder}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        os.symlink(target, f"{folder}/{name}")


def limit_processes() -> None:
    """Limit the PIDs of this namespace if the kernel has a limit for each; otherwise it is that of the machine."""
    numbers = os.uname().release.split(".")[:2]
    if os.getpid() == 1 and all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= PID_LIMIT_KERNEL:
        write_file("/proc/sys/kernel/pid_max", str(MAX_PROCESSES))


def restrict_proc() -> None:
    """Protect the files of /proc that the owner of this user namespace could write."""
    for name in READ_ONLY_PROC:
        path = f"/proc/{name}"
        if os.path.exists(path):
            mount(path, path, None, MS_BIND | MS_REC)
            set_attributes(path, ATTR_RDONLY, recursive=True)
    for name in MASKED_PROC:
        if os.path.exists(f"/proc/{name}"):
            mount("/dev/null", f"/proc/{name}", None, MS_BIND)


def open_source(source: Mount) -> int:
    """Open what is to be mounted; create missing folders of the sub path.  Symbolic links there are an error."""
    found = os.open(source["source"], os.O_PATH)
    for name in source["sub_path"].split("/"):
        if name in ("", "."):
            continue
        if name == "..":
            raise OSError(errno.EINVAL, f"subPath {source['sub_path']}: leaves the volume")
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=found)
        inner = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=found)
        os.close(found)
        found = inner
        if stat.S_ISLNK(os.fstat(found).st_mode):
            raise OSError(errno.ELOOP, f"subPath {source['sub_path']}: {name} is a symbolic link")
    return found


def mount_volume(volume: Mount, source: int, mimicked: list[str]) -> None:
    origin = f"/proc/self/fd/{source}"
    path = posixpath.normpath(volume["path"])
    make_mount_point(path, mimicked, is_folder=os.path.isdir(origin))
    mount(origin, path, None, MS_BIND | MS_REC)
    attributes = ATTR_NOSUID | ATTR_NODEV | (ATTR_RDONLY if volume["read_only"] else 0)
    set_attributes(path, attributes, recursive=True)
    os.close(source)


def make_mount_point(path: str, mimicked: list[str], *, is_folder: bool) -> None:
    if os.path.exists(path):
        return
    parent = posixpath.dirname(path)
    make_mount_point(parent, mimicked, is_folder=True)
    try:
        make_entry(path, is_folder=is_folder)
    except OSError:  # the parent is read-only
        mimic_folder(parent)
        mimicked.append(parent)
        make_entry(path, is_folder=is_folder)


def make_entry(path: str, *, is_folder: bool) -> None:
    if is_folder:
        os.mkdir(path, 0o755)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def mimic_folder(path: str) -> None:
    """Replace a read-only folder by one with the same content in which mount points can be created."""
    entries = os.listdir(path)
    if len(entries) > MAX_ENTRIES:
        raise OSError(errno.E2BIG, f"{path} has too many entries to mount something in it")
    before = os.open(path, os.O_PATH)
    mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for name in entries:
        with suppress(OSError):  # what cannot be mounted is missing
            bind_entry(f"/proc/self/fd/{before}/{name}", f"{path}/{name}", 0)
    os.close(before)
