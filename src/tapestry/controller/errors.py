"""How a reconciler ends a pass when it does not end well."""


class Terminal(Exception):
    """Trying again will not help: the object waits for a change.  `reason` is the word for events and metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class NotLeading(Exception):
    """A write was refused because the leadership it was made under has ended."""
