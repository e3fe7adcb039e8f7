"""Two values, line by line, as people read what differs."""

import difflib
import json
from typing import Any


def json_diff(old: Any, new: Any) -> str:
    before, after = (json.dumps(each, indent=1, sort_keys=True).splitlines(keepends=True) for each in (old, new))
    return "".join(list(difflib.unified_diff(before, after))[2:])
