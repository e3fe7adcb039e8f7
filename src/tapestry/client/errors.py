"""What can go wrong before a request leaves us.

    ValueError ── KubeconfigError         the document is wrong, and stays wrong until somebody changes it
    TransportError ── CredentialsError    the document is right, but what it points to gave nothing usable this time

Both name the field of the kubeconfig; neither ever holds the value of a secret.
"""

from tapestry.kube.errors import TransportError


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used; the message says which field and what to write instead."""


class NoKubeconfig(KubeconfigError):
    """There is none where one is looked for; the message says where that is."""


class CredentialsError(TransportError):
    """No usable credentials right now, so nothing was sent and nothing is known about any object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_sent=False)
