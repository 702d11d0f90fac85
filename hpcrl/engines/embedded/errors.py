"""Errors of the embedded engine that travel to a client as an HTTP status and SGLang's error JSON."""

from __future__ import annotations

from hpcrl.run.errors import HpcrlError


class RequestError(HpcrlError):
    """A request cannot be served as it is.

    Attributes:
        status: HTTP status for the client.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


class WeightUpdateError(HpcrlError):
    """New weights were not taken.

    Attributes:
        touched: some of the loaded weights were already overwritten, so the engine must not generate.
    """

    def __init__(self, message: str, *, touched: bool) -> None:
        self.touched = touched
        super().__init__(message)
