"""The header of a stored bundle: whose and what for it is, its seed, and the length and checksum of what follows.

It carries party, source, owner, program digest, bundle id, seed, what the preparation took on the wire, the exact
length of the rest and its SHA-256, and a SHA-256 of all that.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass, field
from typing import BinaryIO, Self

from comet_mpc.errors import RandomnessDamaged, RandomnessError
from comet_mpc.offline.bundle import CheckedReader

_MAGIC = b"COMETB\x00\x03"
_FIELDS = struct.Struct("<8sBB6x32s32s16s16sQQ32s")
HEADER_BYTES = _FIELDS.size + hashlib.sha256().digest_size
_READ = 1 << 20


def owned_by(name: str) -> bytes:
    """The owner's name, of any length, as a header has it."""
    return hashlib.sha256(name.encode()).digest()


@dataclass(frozen=True)
class Header:
    """What is known of a bundle before its contents are read. `length` and `checksum` are of what comes after it."""

    party: int
    digest: str
    bundle_id: str
    seed: bytes = field(repr=False)
    source: int
    owner: bytes
    """SHA-256 of the name of the client's certificate, at the server."""
    spent: int
    length: int = 0
    checksum: bytes = b""

    def pack(self) -> bytes:
        fields = _FIELDS.pack(
            _MAGIC,
            self.party,
            self.source,
            self.owner,
            bytes.fromhex(self.digest),
            bytes.fromhex(self.bundle_id),
            self.seed,
            self.spent,
            self.length,
            self.checksum,
        )
        return fields + hashlib.sha256(fields).digest()

    @classmethod
    def read(cls, file: BinaryIO, name: str) -> Self:
        """Reads and checks a header and that the file is exactly as long as it says."""
        data = file.read(HEADER_BYTES)
        fields, checksum = data[: _FIELDS.size], data[_FIELDS.size :]
        if len(data) != HEADER_BYTES or hashlib.sha256(fields).digest() != checksum:
            raise RandomnessDamaged(f"bundle {name} is damaged: its header does not check")
        magic, party, source, owner, digest, bundle_id, seed, spent, length, body = _FIELDS.unpack(fields)
        if magic != _MAGIC:
            raise RandomnessError(f"bundle {name} was written by another version; remove the file")
        size = os.fstat(file.fileno()).st_size - HEADER_BYTES
        if size != length:
            raise RandomnessDamaged(f"bundle {name} is damaged: got {size} bytes after the header, expected {length}")
        return cls(party, digest.hex(), bundle_id.hex(), seed, source, owner, spent, length, body)

    def check_rest(self, file: BinaryIO) -> None:
        """Reads all that comes after the header, and goes back."""
        start, reader = file.tell(), self.checked(file)
        while reader.read(_READ):
            pass
        file.seek(start)

    def checked(self, file: BinaryIO) -> CheckedReader:
        return CheckedReader(file, self.bundle_id, self.length, self.checksum)
