"""The list of revoked certificates that an authority signs, and which of two lists is the newer one."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from comet_mpc.errors import ConfigurationError


class UnreadableList(ConfigurationError):
    """There is a list, and nobody knows who is on it: its permissions, or no free descriptor."""


@dataclass(frozen=True)
class RevocationList:
    """A list as its authority has signed it."""

    number: int
    """Grows with every list (RFC 5280, 5.2.3); 0 in lists of before there were numbers."""
    written: datetime
    serials: frozenset[int]
    pem: bytes

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The list in a file, whoever has signed it; None if there is no file."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableList(f"cannot read {path}: {error.strerror}") from error
        try:
            found = x509.load_pem_x509_crl(data)
            numbers = [one.value.crl_number for one in found.extensions if isinstance(one.value, x509.CRLNumber)]
            serials = frozenset(entry.serial_number for entry in found)
            return cls(max(numbers, default=0), found.last_update_utc, serials, data)
        except Exception as error:  # a damaged one raises many kinds
            raise ConfigurationError(f"{path} is not a list of revoked certificates: copy it again") from error

    def signed_by(self, authority: x509.Certificate) -> bool:
        key = authority.public_key()
        return isinstance(key, ec.EllipticCurvePublicKey) and x509.load_pem_x509_crl(self.pem).is_signature_valid(key)

    @property
    def rank(self) -> tuple[int, datetime]:
        """Of two lists the one with the greater rank is in force."""
        return self.number, self.written

    def install(self, context: ssl.SSLContext) -> None:
        """From now on this context refuses the certificates on the list."""
        with _as_file(self.pem) as path:
            context.load_verify_locations(path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """OpenSSL takes lists from files only, and that of ours may have gone. On Linux, one that is in memory."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="revoked-") as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("revoked")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
