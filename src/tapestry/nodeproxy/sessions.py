"""Sessions of exec, attach and port-forward: their limits, their end, and their audit records.

A session ends with its client or its container.  It is also ended when the pod or its twin is gone or replaced, when
this process loses the leadership, and when it stops.  The client then sees that its connection is closed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import Gauge

from tapestry.kube.errors import TooManyRequests, Unavailable
from tapestry.kube.objects import Object, key_of, name_of, namespace_of, uid_of
from tapestry.nodeproxy.stream_requests import StreamTarget
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.process.audit import AuditLog, SessionRecord
from tapestry.process.logs import logger
from tapestry.process.metrics import NAMESPACE
from tapestry.streams.connection import Connection
from tapestry.streams.tunnel import Transferred

log = logger(__name__)

MAX_SESSIONS, MAX_PER_USER = 512, 384
"""Maximum number of sessions, in total and of one user.  An API server is the user of all sessions through it."""
CHECK_SECONDS = 1.0
"""Seconds between two checks whether the pods of the sessions still exist."""
RETRY_SECONDS = 5
MAX_COMMAND_CHARACTERS = 4096
"""Maximum characters of a command in an audit record."""

SESSIONS_IN_PROGRESS = Gauge(
    "stream_sessions",
    "Number of sessions of exec, attach and port-forward in pods of virtual nodes.",
    ["subresource"],
    namespace=NAMESPACE,
)


@dataclass(eq=False)
class Session:
    """A session in the twin of a pod.  It counts from before its connection to the physical cluster."""

    user: str
    target: StreamTarget
    pod: Object
    twin: Object
    command: tuple[str, ...] = ()
    protocol: str = ""
    """Protocol that the physical API server accepted; empty before."""
    started: float = field(default_factory=time.monotonic)
    transferred: Transferred = field(default_factory=Transferred)
    connections: tuple[Connection, ...] = ()
    error: str = ""
    """Reason for which `Sessions` ended the session."""

    def abort(self) -> None:
        for connection in self.connections:
            connection.abort()


@dataclass
class Sessions:
    """The sessions of a process."""

    twins: TwinLookup
    audit: AuditLog | None = None
    identity: str = ""
    """Name of this process in audit records."""
    max_sessions: int = MAX_SESSIONS
    max_per_user: int = MAX_PER_USER
    monotonic: Callable[[], float] = time.monotonic
    is_stopped: bool = field(default=False, init=False)
    _sessions: set[Session] = field(default_factory=set, init=False)
    _started: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there are sessions."""
    _counts: Counter[str] = field(default_factory=Counter, init=False)

    @contextmanager
    def track(self, session: Session) -> Iterator[None]:
        """Count a session in the block.  Raise TooManyRequests if there are too many."""
        self.start(session)
        try:
            yield
        finally:
            self.finish(session)

    def start(self, session: Session) -> None:
        """Count a session until `finish`.  Raise TooManyRequests if there are too many."""
        if self.is_stopped:
            raise Unavailable(503, "ServiceUnavailable", "this process is stopping; try again")
        if len(self._sessions) >= self.max_sessions or self._counts[session.user] >= self.max_per_user:
            message = "there are too many sessions of exec, attach and port-forward; try again later"
            raise TooManyRequests(429, "TooManyRequests", message, details={"retryAfterSeconds": RETRY_SECONDS})
        self._sessions.add(session)
        self._counts[session.user] += 1
        self._started.set()
        SESSIONS_IN_PROGRESS.labels(session.target.subresource).inc()

    async def watch(self) -> None:
        """End sessions whose pod or twin is gone, until cancelled.  Then end all sessions and accept no others."""
        try:
            while True:
                await self._started.wait()
                await asyncio.sleep(CHECK_SECONDS)
                self.end_orphans()
                if not self._sessions:
                    self._started.clear()
        finally:
            self.is_stopped = True
            self.end_all("the process is stopping")

    def end_orphans(self) -> None:
        for session in list(self._sessions):
            if reason := self._orphan_reason(session):
                self._end(session, reason)

    def end_all(self, reason: str) -> None:
        for session in list(self._sessions):
            self._end(session, reason)

    def _orphan_reason(self, session: Session) -> str:
        pod = self.twins.pod(key_of(session.pod))
        if pod is None or uid_of(pod) != uid_of(session.pod):
            return "the pod was deleted"
        twin = self.twins.twin(pod)
        return "" if twin is not None and uid_of(twin) == uid_of(session.twin) else "the twin of the pod was deleted"

    def _end(self, session: Session, reason: str) -> None:
        session.error = reason
        session.abort()
        self.finish(session)

    def finish(self, session: Session) -> None:
        """Stop counting a session, and record it if it had a connection.  A second call has no effect."""
        if session not in self._sessions:
            return
        self._sessions.remove(session)
        self._counts[session.user] -= 1
        if not self._counts[session.user]:
            del self._counts[session.user]
        target = session.target
        SESSIONS_IN_PROGRESS.labels(target.subresource).dec()
        if not session.protocol:
            return
        record = self._record(session)
        log.info(
            "stream session finished",
            user=record.user,
            pod=key_of(session.pod),
            container=record.container,
            subresource=record.subresource,
            command=record.command,
            protocol=record.protocol,
            seconds=record.seconds,
            received=record.received,
            sent=record.sent,
            error=record.error,
        )
        if self.audit is not None:
            self.audit.record(record)

    def _record(self, session: Session) -> SessionRecord:
        return SessionRecord(
            who=self.identity,
            user=session.user,
            name=name_of(session.pod),
            namespace=namespace_of(session.pod) or "",
            subresource=session.target.subresource,
            container=session.target.container,
            command=recorded_command(session.command),
            protocol=session.protocol,
            seconds=round(self.monotonic() - session.started, 3),
            received=session.transferred.received,
            sent=session.transferred.sent,
            error=session.error,
        )


def recorded_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the beginning of a command as valid text."""
    left, result = MAX_COMMAND_CHARACTERS, []
    for part in command:
        text = part.encode("utf-8", "backslashreplace").decode()
        result.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return tuple(result)
