"""File system of a container with namespaces: the files of the machine read-only, and what replaces some of them.

`container_init` uses this module, so it imports the standard library only.
"""

import ctypes
import errno
import os
import posixpath
import stat
import struct
from contextlib import suppress
from typing import TypedDict

from tapestry.local.system_calls import call, system_call, write_file

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
REPLACED_FOLDERS = ("dev", "proc", "run", "tmp")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
READ_ONLY_PROC = ("sys", "bus", "fs", "irq")
MASKED_PROC = ("sysrq-trigger", "kcore", "keys", "timer_list")
OLD_ROOT = "/.old"
MAX_ENTRIES = 2000
"""Limit of a folder's entries that are mounted one by one."""
MAX_PROCESSES = 1024
"""Limit of processes and threads in a container."""
PID_LIMIT_KERNEL = (6, 14)
"""First kernel in which every PID namespace has its own limit."""


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
    system_call("pivot_root", folder, f"{folder}{OLD_ROOT}")
    os.chdir("/")
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
    system_call("mount_setattr", AT_FDCWD, path, flags, value, ctypes.c_size_t(len(value)))


def bind_entry(source: str, target: str, attributes: int) -> None:
    """Show a folder, file or symbolic link in another place."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    make_entry(target, is_folder=os.path.isdir(source))
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
