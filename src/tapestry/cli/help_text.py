"""What `--help` says below the options: examples of how a command is called, and how it ends."""

DONE = "it is done"
FAILED = "it failed, and one line says why"
STOPPED = "it was told to stop"
USAGE_ERROR = 2
INTERRUPTED = 130
"""As shells have it for what Ctrl-C ended."""


def help_epilog(*examples: str, zero: str = DONE, one: str = FAILED) -> str:
    """An epilog; `zero` and `one` are what these exit codes mean of the command, the others mean the same of all."""
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExamples:\n{lines}\n\n{exit_codes(zero, one)}"


def exit_codes(zero: str = DONE, one: str = FAILED) -> str:
    return f"Exit codes: 0, {zero}; 1, {one}; {USAGE_ERROR}, it was called wrongly; {INTERRUPTED}, Ctrl-C ended it."
