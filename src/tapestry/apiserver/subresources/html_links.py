"""Links in proxied responses, which must lead through the proxy again: redirects, and attributes in HTML."""

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

ATTRIBUTES = (
    "href|src|action|formaction|codebase|cite|background|icon|longdesc|profile|manifest|usemap|classid|data|poster"
)
TAG = re.compile(r"<[a-zA-Z][^<>]*>")
ATTRIBUTE = re.compile(rf"""(?<![\w-])((?:{ATTRIBUTES})\s*=\s*)(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)


@dataclass(frozen=True)
class LinkRewriter:
    """Rewrite links to the server of a proxied request."""

    prefix: str
    """Path of the proxy subresource."""
    hosts: tuple[str, ...]
    """Names of the server: the address of the proxied server, and the Host header of the request."""

    def link(self, url: str) -> str:
        """Return an absolute path below the prefix. Other links are unchanged."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return url
        if (parts.netloc and parts.netloc not in self.hosts) or not parts.path.startswith("/"):
            return url
        path = parts.path
        if path != self.prefix and not path.startswith(f"{self.prefix}/"):
            path = posixpath.normpath(f"{self.prefix}/{path}") + ("/" if path.endswith("/") else "")
        return parts._replace(scheme="", netloc="", path=path).geturl()

    def html(self, page: str) -> str:
        """Return a page with its links rewritten. Only quoted attributes are considered."""
        return TAG.sub(lambda tag: ATTRIBUTE.sub(self._attribute, tag[0]), page)

    def _attribute(self, match: re.Match[str]) -> str:
        quote, value = ('"', match[2]) if match[2] is not None else ("'", match[3])
        return f"{match[1]}{quote}{self.link(value)}{quote}"
