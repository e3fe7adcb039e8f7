"""Image that a release of Tapestry is published as, and the command that installs it."""

RELEASE_IMAGE = ""
"""Image of the manager and the syncers.  Each release sets it; a development version has none."""


def install_command(apply: str = "kubectl apply") -> str:
    """Return the command that installs Tapestry in a virtual cluster."""
    image = "" if RELEASE_IMAGE else " --image IMAGE"
    return f"tapestry manifests{image} | {apply} -f -"
