"""Examples and exit codes at the end of each command's `--help`."""

DONE = "success"
FAILED = "error, with a one-line message"
STOPPED = "stopped by SIGTERM or SIGINT"
USAGE_ERROR = 2
INTERRUPTED = 130
"""Exit code of shells after Ctrl-C."""


def help_epilog(*examples: str, zero: str = DONE, one: str = FAILED) -> str:
    """Return an epilog; `zero` and `one` are the command's meanings of these exit codes."""
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExamples:\n{lines}\n\n{exit_codes(zero, one)}"


def exit_codes(zero: str = DONE, one: str = FAILED) -> str:
    return f"Exit codes: 0, {zero}; 1, {one}; {USAGE_ERROR}, usage error; {INTERRUPTED}, interrupted by Ctrl-C."
