"""The table of the switches of a tenant: complete, and the same in the guide."""

from pathlib import Path

import msgspec

from tapestry.apis.clusterbindings import TenantSync
from tapestry.apis.vclusters import SyncConfig
from tapestry.tenants.sync.switches import SWITCHES, switch_rows

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "tenants.md"
NO_SWITCHES = {"nodeSelector"}


def test_table_has_every_switch_once() -> None:
    fields = [each.encode_name for each in msgspec.structs.fields(TenantSync)]
    assert [each.field for each in SWITCHES if each.field] == [each for each in fields if each not in NO_SWITCHES]
    assert sorted(each.name for each in SWITCHES) == sorted(each.name for each in msgspec.structs.fields(SyncConfig))


def test_guide_has_the_table() -> None:
    assert "\n".join(switch_rows()) in GUIDE.read_text(), "the guide needs the rows of switch_rows()"
