"""Validation of URLs and host names in a kubeconfig.

Errors never quote a URL, because it may contain a password.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from tapestry.client.errors import KubeconfigError

HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


def server_url(text: str, origin: str) -> str:
    """Return the URL of an API server without its trailing slash.  It must be http(s)://host[:port][/prefix]."""
    url = parsed_url(text, origin)
    if "@" in url.netloc:
        raise KubeconfigError(f"{origin}: a URL with a user or password; put them into the user of the kubeconfig")
    if "?" in text or "#" in text:
        raise KubeconfigError(f"{origin}: a URL with a query or fragment; give https://host:port and at most a path")
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"


def http_proxy_url(text: str, origin: str) -> str:
    """Return the URL of an HTTP proxy.  It may contain a user and a password."""
    if text.lower().startswith("socks5"):
        raise KubeconfigError(f"{origin}: SOCKS proxies are not supported; give an http:// or https:// proxy")
    parsed_url(text, origin)
    return text


def host_name(text: str, origin: str) -> str:
    if not HOST_NAME.fullmatch(text) and not is_address(text):
        raise KubeconfigError(f"{origin}: not a host name or address")
    return text


def parsed_url(text: str, origin: str) -> SplitResult:
    # urlsplit drops line breaks and accepts backslashes.  Other parsers read such a URL differently.
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise KubeconfigError(f"{origin}: a URL with spaces, backslashes or characters beyond ASCII")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise KubeconfigError(f"{origin}: not a URL; give https://host:port") from None
    if url.scheme not in ("http", "https"):
        raise KubeconfigError(f"{origin}: a URL must begin with https:// or http://")
    if not url.hostname:
        raise KubeconfigError(f"{origin}: a URL without a host; give https://host:port")
    if port == 0:
        raise KubeconfigError(f"{origin}: a URL with port 0")
    host_name(url.hostname, origin)
    return url


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text
