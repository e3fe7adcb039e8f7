"""Exec plugins: programs that issue credentials, from the `exec` field of a kubeconfig.

The program receives its input in KUBERNETES_EXEC_INFO and prints an ExecCredential.  It runs again when that expires
soon or the server rejects it.  The program is not trusted further: it gets no terminal, a time limit and a size limit,
and errors never contain its standard output.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec

from tapestry.client.credentials import bearer_header, has_control_characters
from tapestry.client.errors import CredentialsError, KubeconfigError
from tapestry.client.tls import KeyPair, Pem

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
KIND = "ExecCredential"
TIME_LIMIT = 60.0
"""Time limit of one run, in seconds."""
OUTPUT_LIMIT = 1 << 20
"""Maximum bytes on each output.  A program that writes more is killed."""
RETRY_INTERVAL = 5.0
"""Minimum seconds between runs after failures or after rejections by the server."""
RENEW_BEFORE = timedelta(seconds=30)
"""Time before expiry at which a credential is replaced, or a tenth of its lifetime if that is shorter."""


class EnvironmentVariable(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class ExecSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The `exec` field of a kubeconfig.  `command` is a path, or a name to find on PATH."""

    command: str = ""
    args: list[str] = []
    env: list[EnvironmentVariable] = []
    api_version: str = ""
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False

    def __repr__(self) -> str:
        return f"ExecSpec({self.command!r})"  # arguments and variables may be secrets


class ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    api_version: str
    status: ExecStatus


@dataclass(frozen=True, slots=True, repr=False)
class IssuedCredential:
    token: str | None
    key_pair: KeyPair | None
    replace_at: datetime | None


class ExecPlugin:
    """An AuthorizationSource that runs a program.  Concurrent callers wait for the same run."""

    def __init__(
        self,
        spec: ExecSpec,
        origin: str,
        *,
        cluster: Callable[[], Mapping[str, Any]],
        environ: Mapping[str, str],
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """`cluster` returns the server information for the program, if the spec requests it; `environ` is inherited."""
        check_spec(spec, origin)
        self._spec = spec
        self._origin = origin
        self._cluster = cluster
        self._environ = {**environ, **{each.name: each.value for each in spec.env}}
        self._monotonic = monotonic
        self._now = now
        self._lock = asyncio.Lock()
        self._issued: IssuedCredential | None = None
        self._is_rejected = False
        self._rejected_at = float("-inf")
        self._failure = ""
        self._failed_at = float("-inf")

    @property
    def key_pair(self) -> KeyPair | None:
        return self._issued.key_pair if self._issued else None

    async def authorization(self) -> str | None:
        issued = self._current_credential()
        if issued is None:
            async with self._lock:
                issued = self._current_credential() or await self._renew()
        return bearer_header(issued.token) if issued.token else None

    def handle_unauthorized(self) -> bool:
        """Late 401 responses to requests with the old credential do not start another run."""
        now = self._monotonic()
        if now - self._rejected_at >= RETRY_INTERVAL:
            self._is_rejected, self._rejected_at = True, now
        return True

    def _current_credential(self) -> IssuedCredential | None:
        issued = self._issued
        if issued is None or self._is_rejected:
            return None
        return issued if issued.replace_at is None or self._now() < issued.replace_at else None

    async def _renew(self) -> IssuedCredential:
        if self._monotonic() - self._failed_at < RETRY_INTERVAL:
            raise CredentialsError(self._failure)
        try:
            issued = self._parse_output(await self._output())
        except CredentialsError as error:
            self._failure, self._failed_at = str(error), self._monotonic()
            raise
        self._issued, self._is_rejected = issued, False
        return issued

    async def _output(self) -> bytes:
        """Return the program's output.  Raise CredentialsError unless it succeeds within its limits."""
        process = await self._start_process()
        try:
            async with asyncio.timeout(TIME_LIMIT), asyncio.TaskGroup() as group:
                output = group.create_task(read_bounded(process, process.stdout))
                stderr = group.create_task(read_bounded(process, process.stderr))
                group.create_task(process.wait())
        except TimeoutError:
            raise self._error(f"did not end within {TIME_LIMIT:g} s") from None
        finally:
            if process.returncode is None:
                kill(process)
                await process.wait()
        if max(len(output.result()), len(stderr.result())) > OUTPUT_LIMIT:
            raise self._error(f"printed more than {OUTPUT_LIMIT} bytes")
        if process.returncode:
            reason = redacted_stderr(stderr.result(), self._secrets())
            raise self._error(f"ended with {process.returncode}: {reason or 'it gave no reason'}")
        return output.result()

    async def _start_process(self) -> asyncio.subprocess.Process:
        spec = self._spec
        try:
            return await asyncio.create_subprocess_exec(
                spec.command,
                *spec.args,
                env={**self._environ, "KUBERNETES_EXEC_INFO": self._exec_info()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # no terminal for prompts, and one process group to kill
            )
        except OSError as error:
            hint = f"; {spec.install_hint.strip()}" if spec.install_hint else "; install it or correct the command"
            raise self._error(f"cannot be run: {error.strerror}{hint}") from None
        except ValueError:
            raise self._error("cannot be run: a NUL in its arguments or an '=' in the name of a variable") from None

    def _exec_info(self) -> str:
        spec = self._spec
        info = {"interactive": False} | ({"cluster": self._cluster()} if spec.provide_cluster_info else {})
        return msgspec.json.encode({"kind": KIND, "apiVersion": spec.api_version, "spec": info}).decode()

    def _parse_output(self, output: bytes) -> IssuedCredential:
        try:
            credential = msgspec.json.decode(output, type=ExecCredential)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._error(f"printed no ExecCredential: {error}") from None
        if (credential.kind, credential.api_version) != (KIND, self._spec.api_version):
            raise self._error(f"did not print an ExecCredential of {self._spec.api_version}, the kubeconfig's version")
        status = credential.status
        if has_control_characters(status.token or ""):
            raise self._error("printed a token with control characters")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._error("printed only one of status.clientCertificateData and status.clientKeyData; give both")
        if not status.token and not status.client_certificate_data:
            raise self._error("printed neither status.token nor status.clientCertificateData")
        return IssuedCredential(status.token, self._key_pair(status), self._replace_at(status.expiration_timestamp))

    def _key_pair(self, status: ExecStatus) -> KeyPair | None:
        """Return the pair in `status`.  An equal pair is the same object as before, so that the TLS context stays."""
        if not status.client_certificate_data or not status.client_key_data:
            return None
        pair = KeyPair(
            Pem(f"{self._origin}: status.clientCertificateData", status.client_certificate_data.encode()),
            Pem("status.clientKeyData", status.client_key_data.encode()),
        )
        return self.key_pair if pair == self.key_pair else pair

    def _replace_at(self, end: datetime | None) -> datetime | None:
        return end - min(RENEW_BEFORE, (end - self._now()) / 10) if end else None

    def _secrets(self) -> list[str]:
        """Return inputs that may be secret: variables, and long arguments (or their part after `=`)."""
        values = [each.value for each in self._spec.env if len(each.value) >= 4]
        return values + [part for arg in self._spec.args for part in (arg, arg.partition("=")[2]) if len(part) >= 16]

    def _error(self, problem: str) -> CredentialsError:
        return CredentialsError(f"{self._origin}: {self._spec.command!r} {problem}")


def check_spec(spec: ExecSpec, origin: str) -> None:
    if spec.api_version not in API_VERSIONS:
        raise KubeconfigError(f"{origin}.apiVersion: {spec.api_version!r} is none of {', '.join(API_VERSIONS)}")
    if not spec.command:
        raise KubeconfigError(f"{origin}.command: not set; name the program that prints the credential")
    if spec.interactive_mode not in ("Never", "IfAvailable"):
        raise KubeconfigError(
            f"{origin}.interactiveMode: {spec.interactive_mode!r} is not supported without a terminal; "
            "use Never or IfAvailable"
        )
    for index, each in enumerate(spec.env):
        if not each.name:
            raise KubeconfigError(f"{origin}.env[{index}].name: not set")


async def read_bounded(process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None) -> bytes:
    """Read `stream` up to a little over OUTPUT_LIMIT.  Kill a process that writes more."""
    assert stream is not None, "both outputs are pipes"
    read = bytearray()
    while chunk := await stream.read(1 << 16):
        if len(read) <= OUTPUT_LIMIT:
            read += chunk
        if len(read) > OUTPUT_LIMIT:
            kill(process)
    return bytes(read)


def kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def redacted_stderr(stderr: bytes, secrets: Iterable[str]) -> str:
    """Return the end of a program's stderr on one line, with its secrets replaced."""
    text = stderr.decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):  # one may contain another
        text = text.replace(secret, "***")
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words if len(words) <= 300 else f"...{words[-300:]}"
