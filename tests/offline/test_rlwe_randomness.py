"""The randomness that RLWE stands on is there: in every response an encryption of zero of its own, in every ciphertext
an error of its own.

Without either of them all results are the same and bytes look as random as ever, so nothing else would notice. Both are
taken out here, exactly: what the server sends, less what it would send with nothing to hide it, is 2·(r·pk1 + e1) for
an r that no other response has; and c0 + c1·s, less the message, is the error. They fail by chance less than once in
10^9 times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.net.channel import Channel
from comet_mpc.offline.rlwe import odd_slots, packing, products, slots
from comet_mpc.offline.rlwe.odd_slots import OddJob, OddPlan, odd_plan
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import Homomorphic, Job, MatrixJob
from comet_mpc.offline.rlwe.public_key import PublicKey, make_public_key, respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    ERROR_VARIANCE,
    PRIMES,
    Bytes,
    Residues,
    Scheme,
    SecretKey,
    Small,
    Stream,
    choose_scheme,
    public_polynomial,
    read_uploads,
)
from comet_mpc.offline.rlwe.slots import choose_plan
from comet_mpc.offline.rlwe.tiling import Tiling, choose_tiling
from support.big_polynomials import coefficients, lift, secret_of, times
from support.two_parties import as_parties

RNG = np.random.default_rng(17)
Reals = npt.NDArray[np.float64]


class Noting(Stream):
    """Keeps what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.ephemeral: list[Small] = []
        self.drawn: list[Small] = []

    def ternary(self) -> Small:
        self.ephemeral.append(super().ternary())
        return self.ephemeral[-1]

    def errors(self, count: int) -> Small:
        self.drawn.append(super().errors(count))
        return self.drawn[-1]


class Nothing(Stream):
    """Hides nothing."""

    def ternary(self) -> Small:
        return np.zeros(DEGREE, np.int8)

    def errors(self, count: int) -> Small:
        return np.zeros(count, np.int8)


# Responses ----------------------------------------------------------------------------------------------------

WIDTH, BITS = 40, 20


def tiling(levels: int = 0, turns: int = 0, diagonals: int = 0, parts: int = 1) -> Tiling:
    """Of a product with two responses: one of an output each, or packed."""
    scheme = choose_scheme(WIDTH, 2.0**BITS * 2**10)
    return Tiling(
        *(16, 64, 66 if levels else 2, 64, 64, scheme, levels, parts, BITS // parts, diagonals, True),
        turns=turns,
        turned_limbs=scheme.limbs + 1 if turns else 0,
    )


def matrix_job(how: Tiling, party: int) -> MatrixJob:
    if party == CLIENT:
        return MatrixJob(how, WIDTH)
    y = np.arange(how.outputs * how.inputs, dtype=np.int64).reshape(how.outputs, how.inputs) % 1000 - 500
    return MatrixJob(how, WIDTH, y=y, scales=[np.arange(how.inputs)] * how.diagonals)


class OddProducts(OddJob):
    """Two sums of products of a mask that its ciphertext defines and of a chosen factor."""

    def __init__(self, plan: OddPlan) -> None:
        super().__init__(plan)

    def chosen(self, defined: list[Words]) -> list[Words]:
        return [np.arange(DEGREE, dtype=np.uint64)]

    def factors(self) -> list[Words]:
        return [np.arange(DEGREE, dtype=np.uint64), np.ones(DEGREE, np.uint64)]


def odd_job(modulus: int) -> OddJob:
    return OddProducts(odd_plan(Ring(modulus.bit_length(), modulus), 1, 2, (((0, 0), (1, 1)), ((0, 1),))))


def slot_job(party: int) -> Job:
    plan, values = choose_plan(2, ((0,), (0, 1)), 32, 32), np.arange(-50, 50)
    mine: dict[str, Any] = {"left": [values, values]} if party == CLIENT else {"right": [[values], [values, values]]}
    return slots.SlotJob(plan, 100, **mine)


def response_scheme(job: Job) -> list[Scheme]:
    """Of every response."""
    match job:
        case MatrixJob(tiling=how):
            return [how.answer_scheme] * (how.response_bytes // how.answer_scheme.response_bytes)
        case OddJob(plan=plan):
            return [plan.scheme] * len(plan.sums)
        case slots.SlotJob(plan=plan):
            return [modulus.scheme for modulus in plan.moduli] * len(plan.sums)
    raise TypeError(job)


class Twice(Job):
    """A job that the server answers twice: as it does, and before that with nothing to hide what it has computed."""

    def __init__(self, job: Job, bare: Job) -> None:
        self.job, self._bare = job, bare
        self.upload_bytes, self.response_bytes = job.upload_bytes, job.response_bytes
        self.sent: list[Bytes] = []
        self.unhidden: list[Bytes] = []

    def upload(self, engine: Homomorphic) -> list[Bytes | bytes]:
        return self.job.upload(engine)

    def answer(self, engine: Homomorphic, data: memoryview) -> list[Bytes]:
        real, engine.stream = engine.stream, Nothing()
        self.unhidden = self._bare.answer(engine, data)
        engine.stream = real
        self.sent = self.job.answer(engine, data)
        return self.sent

    def finish(self, engine: Homomorphic, data: memoryview) -> None:
        self.job.finish(engine, data)


JOBS: dict[str, Callable[[int], Job]] = {
    "plain": lambda party: matrix_job(tiling(), party),
    "in parts": lambda party: matrix_job(tiling(parts=2), party),
    "packed": lambda party: matrix_job(tiling(6, 0, 1), party),
    "turned": lambda party: matrix_job(tiling(6, 2, 1), party),
    "in slots": slot_job,
    "in slots of an odd ring": lambda party: odd_job(max(ODD_MODULI)),
}


def numbers(data: Bytes, bits: int) -> list[int]:
    """8,192 numbers of so many bits."""
    rows = np.packbits(np.unpackbits(data, bitorder="little").reshape(DEGREE, bits), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def as_sent(scheme: Scheme, polynomial: Sequence[int]) -> list[int]:
    """round(x·2^bits/q) of every coefficient."""
    q, bits = math.prod(scheme.primes), scheme.response_bits
    return [(2 * (value % q << bits) + q) // (2 * q) for value in polynomial]


@pytest.fixture(scope="module")
def answered() -> tuple[Noting, PublicKey, dict[str, Twice]]:
    """All kinds of jobs on one connection: what the server drew, its key, and its responses."""
    stream = Noting()

    def work(channel: Channel, party: int) -> tuple[PublicKey | None, dict[str, Twice]]:
        engine = Homomorphic(channel, party, threads=1)
        engine.set_up_packing(Packing.TURNS)
        engine.stream = stream if party == SERVER else Stream()
        jobs = {name: Twice(make(party), make(party)) for name, make in JOBS.items()}
        engine.run(list(jobs.values()))
        return engine.public if party == SERVER else None, jobs

    _, (key, jobs) = as_parties(work)
    assert key is not None
    return stream, key, jobs


def test_every_response_of_a_connection_is_hidden_by_an_r_of_its_own(
    answered: tuple[Noting, PublicKey, dict[str, Twice]],
) -> None:
    """Response k is what it would be with nothing to hide it, plus 2·r_k·pk1, up to the rounding of what is sent.

    Packed or not, turned or not. Were r missing, C1 would be W·c1 for a c1 that the client knows; were it the same
    twice, so would the difference of two responses.
    """
    stream, key, jobs = answered
    fresh = iter(stream.ephemeral)
    for name, twice in jobs.items():
        schemes = response_scheme(twice.job)
        assert len(twice.sent) == len(twice.unhidden) == len(schemes) >= 2, name
        for scheme, sent, unhidden in zip(schemes, twice.sent, twice.unhidden, strict=True):
            r, size = next(fresh, None), 1 << scheme.response_bits
            assert r is not None, f"{name}: fewer r than responses"
            hiding = as_sent(scheme, times(key.cut(scheme.limbs).reshape(2, -1)[1], (2 * r).tolist(), scheme.primes))
            rows = (numbers(each, scheme.response_bits) for each in (sent, unhidden))
            off = [(a - b - c + 2) % size for a, b, c in zip(*rows, hiding, strict=True)]
            assert max(off) <= 4, f"{name}: a response is not hidden by the r that was drawn for it"
    assert next(fresh, None) is None, "as many r as responses"


def test_no_two_responses_share_their_r(answered: tuple[Noting, PublicKey, dict[str, Twice]]) -> None:
    """Uniform in {-1, 0, 1} and independent: sums over 8,192 coefficients within 8 deviations."""
    rows = np.stack(answered[0].ephemeral).astype(np.float64)
    assert len(rows) >= 2 * len(JOBS)
    together = rows @ rows.T / (DEGREE * 2 / 3)
    spread = 8 / math.sqrt(DEGREE)
    assert np.abs(together - np.eye(len(rows))).max() < 1.5 * spread
    assert np.abs(rows.mean(axis=1)).max() < spread


@pytest.mark.parametrize("limbs", [2, 4])
def test_a_response_is_an_encryption_of_zero_with_both_of_its_errors(limbs: int) -> None:
    """C0 - 2·r·pk0 and C1 - 2·r·pk1 are twice the errors e0 and e1 as they were drawn.

    A response sends so few bits of C1 that e1 cannot be seen in it. So this one is of numbers of 117 bits: of these
    191 bits of C1/q are sent, and under a small q C1 is known to the last one.
    """
    scheme, seed, stream, key = Scheme(limbs, 117.0), new_seed(), Noting(), SecretKey()
    q, everywhere = math.prod(scheme.primes), np.arange(DEGREE, dtype=np.uint32)
    assert scheme.response_bits > scheme.log_q + 8
    public = PublicKey.decode(make_public_key(key, seed), seed)
    sent, kept = respond(scheme, np.zeros(2 * limbs * DEGREE, np.uint32), public, everywhere, stream)
    fractions = [sum(int(word) << 64 * place for place, word in enumerate(three)) for three in kept.reshape(-1, 3)]
    c0 = [(value * q + (1 << 191)) >> 192 for value in fractions]
    c1 = [(value * q + (1 << scheme.response_bits - 1)) >> scheme.response_bits for value in numbers(sent, 191)]
    (r,) = stream.ephemeral
    found = []
    for half, component in zip((c0, c1), public.cut(limbs).reshape(2, -1), strict=True):
        product = times(component, (2 * r).tolist(), scheme.primes)
        twice = np.array(centred([a - b for a, b in zip(half, product, strict=True)], q))
        assert not (twice % 2).any()
        found.append(twice // 2)
    for name, error in zip(("e0", "e1"), found, strict=True):
        assert_errors([error], name)
        assert any(np.array_equal(error, drawn) for drawn in stream.drawn), name
    assert not np.array_equal(found[0], found[1])


# Ciphertexts of the client's ----------------------------------------------------------------------------------


def centred(values: Sequence[int], q: int) -> list[int]:
    return [(value + q // 2) % q - q // 2 for value in values]


def assert_errors(errors: Sequence[Reals | npt.NDArray[Any]], name: str, *, roundings: float = 0.0) -> None:
    """Each is as large as an error is, has its variance within 8 deviations, and has nothing to do with the others."""
    rows = np.stack(errors).astype(np.float64)
    assert np.abs(rows).max() <= 21 + math.ceil(roundings), name
    slack = 8 * ERROR_VARIANCE * math.sqrt(2 / DEGREE)
    squares = (rows**2).mean(axis=1)
    assert squares.min() > ERROR_VARIANCE - slack, f"{name}: no error, or too small a one"
    assert squares.max() < ERROR_VARIANCE + roundings + slack, name
    assert np.abs(rows.mean(axis=1)).max() < 8 * math.sqrt((ERROR_VARIANCE + roundings) / DEGREE), name
    alike = np.corrcoef(rows) if len(rows) > 1 else np.ones((1, 1))
    assert np.abs(alike - np.eye(len(rows))).max() < 10 / math.sqrt(DEGREE), f"{name}: two errors are one"


def phase(ciphertext: Residues, secret: list[int], primes: tuple[int, ...]) -> list[int]:
    """c0 + c1·s mod q."""
    c0, c1 = ciphertext
    both = zip(coefficients(c0, primes), times(c1, secret, primes), strict=True)
    return [(a + b) % math.prod(primes) for a, b in both]


def errors_of(ciphertext: Residues, secret: list[int], primes: tuple[int, ...], modulus: int) -> Reals:
    """How far c0 + c1·s is from the nearest multiple of q/T: whatever the message is."""
    q = math.prod(primes)
    whole = phase(ciphertext, secret, primes)
    nearest = [(value * modulus + q // 2) // q for value in whole]
    return np.array([value - (2 * q * m + modulus) // (2 * modulus) for value, m in zip(whole, nearest, strict=True)])


def uploaded(
    make: Callable[[int], Job], module: Any, reader: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[SecretKey, list[Residues]]:
    """The ciphertexts of two jobs of a connection as the server reads them, and the key they are under."""
    read: list[Residues] = []
    original = getattr(module, reader)

    def noting(*given: Any, **named: Any) -> list[Residues]:
        read.extend(found := original(*given, **named))
        return list(found)

    monkeypatch.setattr(module, reader, noting)

    def work(channel: Channel, party: int) -> SecretKey | None:
        engine = Homomorphic(channel, party, threads=1)
        for _ in range(2):
            engine.run([make(party)])
        return engine.secret if party == CLIENT else None

    key, _ = as_parties(work)
    assert key is not None
    return key, read


def chosen_job(party: int) -> MatrixJob:
    how = choose_tiling(300, 40, 3, WIDTH, BITS)
    if party == CLIENT:
        return MatrixJob(how, WIDTH, x=RNG.integers(0, 2**WIDTH, (300, 40), dtype=np.uint64))
    return MatrixJob(how, WIDTH, y=np.ones((3, 40), np.int64))


def defined_job(party: int) -> MatrixJob:
    how = Tiling(256, 64, 3, 64, 64, choose_scheme(WIDTH, 2.0**30), 0, 1, BITS, 0, True)
    return matrix_job(how, party)


UPLOADS: dict[str, tuple[Callable[[int], Job], Any, str, int]] = {
    "chosen words": (chosen_job, products, "read_uploads", 2**WIDTH),
    "words that define masks": (defined_job, products, "read_defined", 2**WIDTH),
    **{
        f"masks and factors in an odd ring of {modulus.bit_length()} bits": (
            lambda party, modulus=modulus: odd_job(modulus),  # type: ignore[misc]
            odd_slots,
            "read_slots",
            modulus,
        )
        for modulus in ODD_MODULI
    },
}


@pytest.mark.parametrize("kind", UPLOADS)
def test_every_upload_has_a_c1_and_an_error_of_its_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error s follows from c1·s by linear equations. With one c1 for two of them their difference is bare.

    A ciphertext that defines a mask is rounded twice more, by at most ½ each.
    """
    make, module, reader, modulus = UPLOADS[kind]
    monkeypatch.setattr(Scheme, "shortened", lambda scheme, *_: scheme)  # what is not sent would be another error
    odd_slots.odd_plan.cache_clear()
    key, read = uploaded(make, module, reader, monkeypatch)
    odd_slots.odd_plan.cache_clear()
    secret, primes = secret_of(key), PRIMES[: read[0].shape[1]]
    assert len(read) >= 2
    assert len({each[1].tobytes() for each in read}) == len(read), "a c1 is used twice"
    assert_errors([errors_of(each, secret, primes, modulus) for each in read], kind, roundings=1.0)
    silent = errors_of(without_errors(key, primes), secret, primes, modulus)
    assert (silent**2).mean() <= 1  # the control


def without_errors(key: SecretKey, primes: tuple[int, ...]) -> Residues:
    """An encryption of zero."""
    real, key.stream = key.stream, Nothing()
    seed = new_seed()
    c0, _ = key.zero(seed, 0, primes)
    key.stream = real
    return np.stack([c0, public_polynomial(seed, 0, primes)]).reshape(2, len(primes), DEGREE)


def test_the_public_key_has_an_error() -> None:
    key, seed = SecretKey(), new_seed()
    both = PublicKey.decode(make_public_key(key, seed), seed).cut(len(PRIMES)).reshape(2, len(PRIMES), DEGREE)
    assert_errors([np.array(centred(phase(both, secret_of(key), PRIMES), math.prod(PRIMES)))], "public key")


def test_every_key_for_packing_has_an_error_of_its_own() -> None:
    """Encryptions of p·s(X^g) modulo one prime, and of zero modulo the others: here some of the first two g."""
    key, digits, errors = SecretKey(), len(PRIMES) - 1, []
    steps, secret, q = Packing.MERGES.steps, secret_of(key), math.prod(PRIMES)
    seed = new_seed()
    data = b"".join(packing.packing_keys(key, Packing.MERGES, seed))
    keys = read_uploads([Scheme(len(PRIMES), 0)] * (len(steps) * digits), seed, data)
    for place in (0, 1, digits, 2 * digits - 1):
        digit, step = place % digits, steps[place // digits]
        message = np.zeros((len(PRIMES), DEGREE), np.uint32)
        message[digit] = np.mod(key.turned(step).astype(np.int64) * PRIMES[-1], PRIMES[digit])
        both = zip(phase(keys[place], secret, PRIMES), lift(message, PRIMES), strict=True)
        errors.append(np.array(centred([a - b for a, b in both], q)))
    assert_errors(errors, "keys for packing")
