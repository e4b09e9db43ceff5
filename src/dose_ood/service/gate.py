"""The gate before every request: who may come in, how many at once, and which headers every answer gets."""

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dose_ood.service.settings import Refusal, too_busy

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
LOG = logging.getLogger("uvicorn.error.dose")  # where uvicorn writes to
OPEN = ("/", "/page.css", "/charts.js", "/page.js", "/favicon.svg", "/v2/health/live", "/v2/health/ready")
KNOWN = (*OPEN, "/score", "/detector", "/stream", "/metrics", "/v2")


@dataclass(frozen=True)
class Rules:
    """Who may come in.

    Parameters
    ----------
    token
        What callers must send as `Authorization: Bearer TOKEN`, None to ask for nothing.
    hosts
        The names under which the service may be called, empty for any; without a token, this keeps pages of other
        sites out, whatever name they give this machine.
    requests
        Requests under way at once.
    """

    token: str | None
    hosts: Sequence[str]
    requests: int


class Gate:
    """Wraps an app: refuses, counts, and adds headers.

    Parameters
    ----------
    app
        What lies behind.
    rules
        Who may come in.
    answered
        Is told the endpoint, the status and the seconds of every answer.
    """

    def __init__(self, app: ASGIApp, rules: Rules, answered: Callable[[str, int, float], None]) -> None:
        self._app, self._rules, self._answered = app, rules, answered
        self._digest = None if rules.token is None else _digest(rules.token)
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = monotonic(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self._under_way += 1
        try:
            self._check(scope)
            await self._app(scope, receive, send_with_headers)
        except Refusal as refusal:
            await answer(refusal, send_with_headers)
        except Exception as error:
            LOG.exception("a request to %s failed", endpoint(scope["path"]))
            if status:
                raise
            said = f"the service failed: {type(error).__name__}; its log has more"
            await answer(Refusal(500, said), send_with_headers)
        finally:
            self._under_way -= 1
            self._answered(endpoint(scope["path"]), status, monotonic() - started)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._rules.hosts and _name(host) not in self._rules.hosts:
            raise Refusal(403, f"expected to be called {' or '.join(self._rules.hosts)}, got the host {host[:80]!r}")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Refusal(403, f"expected a request of this site's own page, got one from {origin[:80]!r}")
        if self._under_way > self._rules.requests:
            raise too_busy(503, f"expected at most {self._rules.requests:,} requests at once, and they are under way")
        if self._digest is not None and scope["path"] not in OPEN:
            self._check_token(headers.get("authorization", ""))

    def _check_token(self, authorization: str) -> None:
        scheme, _, token = authorization.partition(" ")
        came = _digest(token.strip())  # of equal length, so that the comparison takes the same time for all
        if not hmac.compare_digest(came, self._digest or b"") or scheme.lower() != "bearer":
            got = "another one" if authorization else "none"
            message = f"expected the header Authorization: Bearer TOKEN with the service's token, got {got}"
            raise Refusal(401, message, {"WWW-Authenticate": "Bearer"})


def endpoint(path: str) -> str:
    """What the metrics call a path; whatever is not known is one thing, so that nobody can make up labels."""
    if path.startswith("/v2/models/"):
        return "infer" if path.endswith("/infer") else "model"
    return path if path in KNOWN else "other"


async def answer(refusal: Refusal, send: Send) -> None:
    """Send a refusal as JSON."""
    body = json.dumps({"error": refusal.message}).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refusal.headers}
    headers = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _name(host: str) -> str:
    """A host without its port."""
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0].lower()
