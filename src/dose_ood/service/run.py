"""Serving on a socket until told to stop."""

import ipaddress
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn

from dose_ood.detector import Detector
from dose_ood.errors import InputError
from dose_ood.service.app import create_app
from dose_ood.service.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SHORTEST_TOKEN = 16
SWITCH = 2e-4  # seconds that the model waits for Python while requests are read, after each of its many operations
GRACE = 60  # seconds to finish what was accepted, beyond a request's own timeout


def serve(
    detector: Detector,
    settings: Settings,
    *,
    name: str,
    host: str,
    port: int,
    token: str | None,
    started: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted.

    Parameters
    ----------
    detector
        Gives the verdicts.
    settings
        Bounds of memory and time.
    name
        What the protocol calls the detector.
    host, port
        Where to listen; port 0 is any that is free.
    token
        What callers must send; needed for a host that is not loopback.
    started
        Is told the address, once connections are taken.
    """
    loopback = is_loopback(host)
    if not loopback and token is None:
        raise InputError(f"--host {host} can be reached from other machines, which needs a --token-file")
    app = create_app(detector, settings, name=name, token=token, hosts=LOOPBACK if token is None else ())
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=2 * settings.requests,
        timeout_graceful_shutdown=int(settings.timeout) + GRACE,
    )
    with listening(host, port) as listener:
        # uvicorn raises the signal again when it has finished; by then it is nothing but the end.
        before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            where = f"[{host}]" if ":" in host else host
            started(f"http://{where}:{listener.getsockname()[1]}")
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            sys.setswitchinterval(interval)
            for each, handler in before.items():
                signal.signal(each, handler)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    """A socket that connections queue at from now on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error}") from error


def read_token(path: Path) -> str:
    """The token in a file: at least 16 printable ASCII characters, without spaces."""
    try:
        with path.open("rb") as file:
            raw = file.read(4097)
    except OSError as error:
        raise InputError(f"cannot read the token in {path}: {error.strerror}") from error
    token = raw.decode("ascii", "replace").strip()
    if not SHORTEST_TOKEN <= len(token) <= 4096 or not all("!" <= letter <= "~" for letter in token):
        raise InputError(f"{path}: expected a token of {SHORTEST_TOKEN} or more ASCII characters without spaces")
    return token
