"""How many files and sockets a process may have open."""

import resource


def raise_open_file_limit(desired: int) -> int:
    """Raise the limit to what is wanted, as far as the system allows; the limit as it then is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= desired:
        return desired if soft == resource.RLIM_INFINITY else soft
    raised = desired if hard == resource.RLIM_INFINITY else min(desired, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
