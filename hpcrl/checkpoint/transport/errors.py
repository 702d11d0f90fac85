"""What can go wrong on the way."""

from __future__ import annotations

from hpcrl.run.errors import HpcrlError


class TransportError(HpcrlError):
    """A version did not arrive, or not whole; names the peer and the step. Another way may be taken."""
