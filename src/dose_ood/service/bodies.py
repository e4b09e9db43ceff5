"""Bodies of requests, read within bounds of size, of time and of what all of them hold together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from dose_ood.service.settings import Refusal, Settings, too_busy


class Bodies:
    """Reads bodies; what all requests under way hold is bounded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body, which counts as held until the block ends."""
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise Refusal(415, f"expected a body as it is, without Content-Encoding, got {encoding[:40]!r}")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal():
            self._check(int(declared[:20]))
        taken = [0]
        try:
            try:
                async with asyncio.timeout(self._settings.upload_timeout):
                    body = await self._collect(request, taken)
            except TimeoutError:
                limit = self._settings.upload_timeout
                raise Refusal(408, f"expected the body within {limit:g} seconds, got {taken[0]:,} bytes") from None
            except ClientDisconnect:
                raise Refusal(499, "the client went away") from None
            yield body
        finally:
            self.held -= taken[0]

    async def _collect(self, request: Request, taken: list[int]) -> bytes:
        chunks = []
        async for chunk in request.stream():
            self._check(taken[0] + len(chunk))
            if self.held + len(chunk) > self._settings.bodies:
                raise too_busy(
                    503, f"expected at most {self._settings.bodies:,} bytes of requests under way, and they are here"
                )
            taken[0] += len(chunk)
            self.held += len(chunk)
            chunks.append(chunk)
        return b"".join(chunks)

    def _check(self, size: int) -> None:
        if size > self._settings.body:
            raise Refusal(413, f"expected a body of at most {self._settings.body:,} bytes, got {size:,} or more")
