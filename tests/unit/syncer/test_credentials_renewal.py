"""Tokens in kubeconfigs: what they say, and their renewal, on virtual time."""

import base64
import json

import yaml

from tapestry.syncer.credentials import kubeconfig_in, token_in, with_token


def a_token(**claims: object) -> str:
    payload = {
        "exp": 1_706_745_600,
        "iat": 1_704_067_200,
        "kubernetes.io": {"namespace": "leased", "serviceaccount": {"name": "east", "uid": "1"}},
        **claims,
    }
    middle = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")
    return f"e30.{middle}.c2ln"


def a_kubeconfig(token: str) -> dict:
    return {"users": [{"name": "u", "user": {"token": token}}], "clusters": []}


def test_a_service_account_token_says_whose_it_is_and_when_to_renew_it() -> None:
    token = token_in(a_kubeconfig(a_token()))
    assert token is not None
    assert token.kubernetes.serviceaccount.name == "east"
    assert token.ends.isoformat() == "2024-02-01T00:00:00+00:00"
    assert token.renewal.isoformat() == "2024-01-25T19:12:00+00:00"


def test_other_credentials_are_left_alone() -> None:
    for kubeconfig in (
        {},
        a_kubeconfig("opaque"),
        a_kubeconfig("a.b.c"),
        a_kubeconfig(a_token(exp="never")),
        {"users": [{"name": "u", "user": {"client-certificate-data": "x"}}]},
        {"users": [*a_kubeconfig(a_token())["users"], *a_kubeconfig(a_token())["users"]]},
    ):
        assert token_in(kubeconfig) is None


def test_a_new_token_changes_nothing_else() -> None:
    before = a_kubeconfig(a_token())
    after = with_token(before, "new")
    assert after["users"][0] == {"name": "u", "user": {"token": "new"}}
    assert {**after, "users": 0} == {**before, "users": 0}


def test_a_kubeconfig_that_cannot_be_read_is_empty() -> None:
    data = base64.b64encode(yaml.safe_dump(a_kubeconfig("t")).encode()).decode()
    assert kubeconfig_in({"data": {"kubeconfig": data}}) == a_kubeconfig("t")
    for broken in ("???", base64.b64encode(b"[").decode(), base64.b64encode(b"- 1").decode()):
        assert kubeconfig_in({"data": {"kubeconfig": broken}}) == {}
