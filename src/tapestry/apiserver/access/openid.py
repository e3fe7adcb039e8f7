"""What others need to know the tokens of service accounts by: the issuer, and its keys.

They are pages of their own that those may read who have the role `system:service-account-issuer-discovery`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.access.service_accounts import Accounts
from tapestry.apiserver.requests import Call
from tapestry.apiserver.server import Answer, Page, answered

KEYS = "/openid/v1/jwks"
CONFIGURATION = "/.well-known/openid-configuration"
HEADERS = {"Cache-Control": "public, max-age=3600"}


@dataclass(frozen=True)
class OpenId:
    accounts: Accounts

    def pages(self) -> Mapping[str, Page]:
        return {".well-known": self.configuration, "openid": self.keys}

    async def configuration(self, call: Call) -> Answer:
        if call.path != CONFIGURATION:
            raise refusals.no_such_path()
        issuer = self.accounts.issuer
        algorithms = sorted({key["alg"] for key in self.accounts.keys.jwks})
        found = {
            "issuer": issuer,
            "jwks_uri": f"{issuer.rstrip('/')}{KEYS}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        }
        answer = answered(200, found)
        return Answer(200, answer.body, answer.content_type, HEADERS)

    async def keys(self, call: Call) -> Answer:
        if call.path != KEYS:
            raise refusals.no_such_path()
        body = msgspec.json.encode({"keys": self.accounts.keys.jwks})
        return Answer(200, body, "application/jwk-set+json", HEADERS)
