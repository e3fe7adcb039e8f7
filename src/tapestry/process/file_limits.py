"""The limit of open files and sockets of the process."""

import resource


def raise_open_file_limit(desired: int) -> int:
    """Raise the limit to `desired`, as far as the system allows.  Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= desired:
        return desired if soft == resource.RLIM_INFINITY else soft
    raised = desired if hard == resource.RLIM_INFINITY else min(desired, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
