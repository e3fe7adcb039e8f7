"""Record of replaced CAs and signing keys: until when each is still trusted."""

from datetime import datetime
from pathlib import Path

import msgspec

from tapestry.apiserver.core.private_files import replace_file

RETIREMENTS_FILE = "retirements.json"

Retirements = dict[str, datetime]
"""End of the trust by the fingerprint of a CA or the ID of a signing key."""


def load_retirements(keys_folder: Path) -> Retirements:
    """Load the record of a folder; empty if there is none. Raises ValueError for a malformed file."""
    path = keys_folder / RETIREMENTS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Retirements)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}; restore it, or delete it to trust replaced keys") from error


def write_retirements(keys_folder: Path, retirements: Retirements) -> None:
    content = msgspec.json.format(msgspec.json.encode(retirements), indent=1) + b"\n"
    replace_file(keys_folder / RETIREMENTS_FILE, content)
