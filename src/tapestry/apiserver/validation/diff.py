"""Line-by-line diff of two JSON values for error messages."""

import difflib
import json
from typing import Any


def json_diff(old: Any, new: Any) -> str:
    old_lines, new_lines = (json.dumps(each, indent=1, sort_keys=True).splitlines(keepends=True) for each in (old, new))
    return "".join(list(difflib.unified_diff(old_lines, new_lines))[2:])
