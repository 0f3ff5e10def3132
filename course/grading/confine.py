"""What holds a process that runs code of others: limits, and the kernel's own fences where they are there.

All of it is best effort by design of the operating system's rights: `rlimits` always work; `namespaces` (no network, no view of
other processes, everything killed with the first) and `files_only` (Landlock: no file outside a list, no TCP, no signal to the
outside) need a Linux that offers them to ordinary users. `Fences` says which are up. Together they are no virtual machine.
"""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass

_libc = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534

# Linux: <linux/prctl.h>, <linux/sched.h>, <linux/landlock.h>, <linux/capability.h>
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
CAPABILITY_VERSION = 0x20080522

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READING = EXECUTE | READ_FILE | READ_DIR
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14  # 14: truncate
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # by version of Landlock


@dataclass(frozen=True)
class Limits:
    """What one submission may use. Seconds are by the clock, except ``cpu``; bytes are of one process.

    cell: of one cell. cpu: of the process, whatever it does. total: of the whole submission. memory: above what the course's
    own packages take. file: of a file that it writes. processes, files: at once. reply: of one answer to the grader.
    """

    cell: float = 30.0
    cpu: int = 900
    total: float = 1200.0
    memory: int = 2 << 30
    file: int = 64 << 20
    processes: int = 64
    files: int = 256
    reply: int = 128 << 20

    def as_dict(self) -> dict:
        return asdict(self)


def _prctl(option: int, value: int) -> bool:
    return _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0


def die_with_parent() -> None:
    """Be killed when the process that started this one ends, kill -9 included."""
    parent = os.getppid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


def hide_memory() -> None:
    """Let no other process of the same user read this one's memory or environment."""
    _prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of whatever is orphaned below, so that nothing that a submission starts gets away."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def become_nobody() -> None:
    """Give up root for good. Raises OSError where that is not allowed."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    _prctl(PR_SET_DUMPABLE, 1)  # or /proc/self belongs to root and no namespace can be set up


def namespaces() -> bool:
    """Give the processes that this one starts their own users, process numbers, network and IPC; False where not allowed."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC) != 0:
        return False
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        os._exit(125)  # half way in there is no way back: the caller tries without
    return True


def rlimits(limits: Limits, own_users: bool) -> None:
    """Set the limits of this process. ``own_users``: in a user namespace of its own, where nobody else's processes count."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    others = 0 if own_users else sum(1 for _ in _tasks_of(os.getuid()))
    wanted = {
        resource.RLIMIT_AS: mapped + limits.memory,
        resource.RLIMIT_CPU: limits.cpu,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_NPROC: others + limits.processes,
        resource.RLIMIT_CORE: 0,
    }
    for what, value in wanted.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def _tasks_of(user: int) -> Iterable[str]:
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == user:
                yield from os.listdir(f"/proc/{entry.name}/task")
        except OSError:
            continue  # it has ended


def no_privileges() -> None:
    """Drop every capability (a new user namespace gives them all) and gain none through any program."""
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    _libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def landlock_version() -> int:
    """Version of Landlock that this kernel offers; 0 for none."""
    return max(_libc.syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), 1), 0)


def files_only(reading: Iterable[str], writing: Iterable[str]) -> bool:
    """From now on no file but below ``reading`` and ``writing``, no TCP, no signal to the outside; False without Landlock.

    Needs `no_privileges` first. Fences of newer versions of Landlock are left out where the kernel does not know them.
    """
    version = landlock_version()
    if version == 0:
        return False
    handled = RIGHTS[max(known for known in RIGHTS if known <= version)]
    attributes = struct.pack("QQQ", handled, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _libc.syscall(SYS_CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    for paths, rights in ((reading, READING), (writing, handled)):
        for path in paths:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not on this machine
            allowed = rights & handled if os.path.isdir(path) else rights & handled & OF_A_FILE
            rule = struct.pack("=Qi", allowed, place)
            _libc.syscall(SYS_ADD_RULE, rules, 1, ctypes.c_char_p(rule), 0)
            os.close(place)
    held = _libc.syscall(SYS_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return held
