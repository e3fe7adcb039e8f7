"""OpenID discovery documents for service account tokens: the issuer and its public keys.

They are readable with the role `system:service-account-issuer-discovery`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.access.service_account_tokens import ServiceAccountTokens
from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse, PathHandler, json_response

JWKS_PATH = "/openid/v1/jwks"
CONFIGURATION_PATH = "/.well-known/openid-configuration"
HEADERS = {"Cache-Control": "public, max-age=3600"}


@dataclass(frozen=True)
class OpenIdHandlers:
    account_tokens: ServiceAccountTokens

    def path_handlers(self) -> Mapping[str, PathHandler]:
        return {".well-known": self.configuration, "openid": self.keys}

    async def configuration(self, call: Call) -> ApiResponse:
        if call.path != CONFIGURATION_PATH:
            raise api_errors.path_not_found()
        issuer = self.account_tokens.issuer
        algorithms = sorted({key["alg"] for key in self.account_tokens.keys().jwks})
        result = {
            "issuer": issuer,
            "jwks_uri": f"{issuer.rstrip('/')}{JWKS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        }
        response = json_response(200, result)
        return ApiResponse(200, response.body, response.content_type, HEADERS)

    async def keys(self, call: Call) -> ApiResponse:
        if call.path != JWKS_PATH:
            raise api_errors.path_not_found()
        body = msgspec.json.encode({"keys": self.account_tokens.keys().jwks})
        return ApiResponse(200, body, "application/jwk-set+json", HEADERS)
