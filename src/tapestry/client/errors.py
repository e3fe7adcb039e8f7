"""Errors that occur before a request is sent.

    ValueError ── KubeconfigError         the kubeconfig is wrong and stays wrong until it is changed
    TransportError ── CredentialsError    the kubeconfig is valid, but its file or program gave nothing usable now

Both name the field of the kubeconfig.  Neither contains the value of a secret.
"""

from tapestry.kube.errors import TransportError


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used.  The message names the field and what to write instead."""


class NoKubeconfig(KubeconfigError):
    """No kubeconfig exists in the places where it is looked for.  The message names them."""


class CredentialsError(TransportError):
    """No usable credentials right now.  Nothing was sent, so nothing is known about any object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_sent=False)
