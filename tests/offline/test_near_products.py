"""Encrypted products that are cut later: how far off they are, at real shapes, and what that must not tell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from comet_mpc import _native
from comet_mpc.engine.correlations import ClientMask, Correlation, WeightProduct, repeated
from comet_mpc.engine.seeds import new_seed
from comet_mpc.errors import ShapeError
from comet_mpc.net.channel import Channel
from comet_mpc.offline.pair.matrices import key_limbs, matrix_products, packing_of
from comet_mpc.offline.pair.workbench import WEIGHT_BITS, WEIGHT_LENGTH
from comet_mpc.offline.rlwe import products
from comet_mpc.offline.rlwe.defined import UnevenRest, define_words, read_defined
from comet_mpc.offline.rlwe.packing import MOST_LIMBS, Packing
from comet_mpc.offline.rlwe.products import Homomorphic, MatrixJob
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    HIDING_BITS,
    Fractions,
    Residues,
    Scheme,
    SecretKey,
    Stream,
    basis,
    choose_scheme,
    scale_words,
)
from comet_mpc.offline.rlwe.tiling import Tiling, choose_tiling
from support.two_parties import as_parties

RNG = np.random.default_rng(7)

WEIGHTS = {  # rows, inputs, outputs, width, cuts: of BERT-base, with some of the outputs
    "queries, keys, values and the skip": (128, 768, 256, 55, (24, 19)),
    "up": (128, 768, 256, 53, (22, 19)),
    "down": (128, 3072, 128, 46, (13,)),
}
MASKS = {"scores": (128, 64, 128, 32, 14), "numerators": (65, 128, 128, 47, 13)}


def weight_tiling(rows: int, inputs: int, outputs: int, width: int, cuts: tuple[int, ...]) -> Tiling:
    return choose_tiling(
        *(rows, inputs, outputs, width, WEIGHT_BITS, Packing.TURNS),
        length=WEIGHT_LENGTH,
        diagonals=len(cuts) - 1,
        free=True,
        cuts=cuts,
    )


def mask_tiling(rows: int, inputs: int, outputs: int, width: int, cut: int) -> Tiling:
    length = math.sqrt(inputs * 4.0**width / 4)
    return choose_tiling(rows, inputs, outputs, width, width, Packing.TURNS, length=length, free=True, cuts=(cut,))


def errors(tiling: Tiling, width: int, *, mask: bool = False, limbs: int = MOST_LIMBS) -> list[NDArray[np.float64]]:
    """Of the product and of every scaling, in units of what is left after the cut. Weights are as long as allowed."""
    rows, inputs, outputs = tiling.rows, tiling.inputs, tiling.outputs
    if mask:
        y = RNG.integers(-(2 ** (width - 1)), 2 ** (width - 1), (outputs, inputs), dtype=np.int64)
    else:
        y = np.floor(RNG.choice([-1.0, 1.0], (outputs, inputs)) * WEIGHT_LENGTH / math.sqrt(inputs)).astype(np.int64)
        y[0] = 0
        y[0, 3] = WEIGHT_LENGTH  # all of a row in one number
    z = [RNG.integers(-(2**23), 2**23, inputs) for _ in range(tiling.diagonals)]

    def party(channel: Channel, number: int) -> MatrixJob:
        engine = Homomorphic(channel, number)
        engine.set_up_packing(Packing.TURNS, limbs)
        job = MatrixJob(tiling, width) if number == 0 else MatrixJob(tiling, width, y=y, scales=z)
        engine.run([job])
        return job

    client, server = as_parties(party)
    before = [client.x @ y.view(np.uint64).T, *(client.x * scale.view(np.uint64) for scale in z)]
    shift, found = np.uint64(64 - width), list[NDArray[np.float64]]()
    for one, other, exact, section in zip(client.shares, server.shares, before, tiling.sections(), strict=True):
        off = ((one + other - exact) << shift).view(np.int64) >> np.int64(64 - width)
        found.append(off.reshape(rows, -1).astype(np.float64) * np.float64(2.0**-section.scheme.cut))
    return found


@pytest.mark.parametrize("name", [*WEIGHTS, *MASKS])
def test_errors_at_real_shapes_stay_within_half_a_unit(name: str) -> None:
    """The largest is below half a unit, and the deviation below a twentieth: ten deviations are what there is room for.

    They are no smaller than they need to be, either, centred, and one row tells nothing of the next.
    """
    if name in WEIGHTS:
        rows, inputs, outputs, width, cuts = WEIGHTS[name]
        found = errors(weight_tiling(rows, inputs, outputs, width, cuts), width)
    else:
        rows, inputs, outputs, width, cut = MASKS[name]
        found = errors(mask_tiling(rows, inputs, outputs, width, cut), width, mask=True)
    for off in found:
        deviation = float(off.std())
        assert np.abs(off).max() <= 0.5
        assert deviation < 0.05
        assert abs(float(off.mean())) < 6 * deviation / math.sqrt(off.shape[0])
        beside = np.corrcoef(off[:-1].reshape(-1), off[1:].reshape(-1))[0, 1]
        assert abs(beside) < 6 / math.sqrt(off.size)
    assert found[0].std() > 0.005


def test_an_error_beyond_the_bound_is_noticed() -> None:
    """The control: with five low bits fewer than planned, errors leave the half unit."""
    rows, inputs, outputs, width, cuts = WEIGHTS["up"]
    tiling = weight_tiling(rows, inputs, outputs, width, cuts)
    coarse = replace(tiling, scheme=replace(tiling.scheme, dropped=tiling.scheme.dropped + 5))
    assert max(np.abs(off).max() for off in errors(coarse, width)) > 0.5


@pytest.mark.parametrize("width", [32, 40, 47, 55, 64])
@pytest.mark.parametrize("cut", [4, 13, 24])
@pytest.mark.parametrize("norm", [2.0**23, 2.0**36])
def test_ten_deviations_of_all_errors_fit_into_half_a_unit(width: int, cut: int, norm: float) -> None:
    scheme = choose_scheme(width, norm, 0.0, cut)
    step = 2.0 ** (scheme.log_q - width)
    noise = math.sqrt(11.5 * norm**2) / step
    response = math.sqrt(DEGREE * (2 / 3) / 12) * 2.0 ** (width - scheme.response_bits)
    assert 1 + 10 * (noise + response) <= 2.0 ** (cut - 1)
    assert 2 * math.exp(-(10**2) / 2) * 2**28 < 2.0**-40  # of two sums, for every coefficient of a query


def test_a_modulus_hides_behind_the_cut_what_responses_are_hidden_by() -> None:
    """Though noise alone would allow far less; and the smaller the cut, the larger it is."""
    for width, cut in ((55, 24), (55, 19), (47, 13), (32, 14), (64, 4)):
        scheme = choose_scheme(width, 2.0**10, 0.0, cut)
        assert scheme.log_q - width + cut >= HIDING_BITS
        assert scheme.limbs == 1 or not Scheme(scheme.limbs - 1, width, cut).hides
    assert choose_scheme(55, 2.0**23, 0.0, 19).limbs == 3
    assert choose_scheme(55, 2.0**23, 0.0, 18).limbs == 4
    assert choose_scheme(55, 2.0**23).limbs > 4


# Masks that ciphertexts define -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "steps"), [(10007, 16), (65537, 37), (100003, 64)])
def test_rests_that_are_sent_come_with_every_message_exactly_once(q: int, steps: int) -> None:
    """All w of a small modulus: of the rests up to floor(q/2T) - 1 each; of those beyond, some with fewer."""
    largest = q // (2 * steps) - 1
    met: dict[int, list[int]] = {}
    for w in range(q):
        a = (2 * w * steps + q) // (2 * q)
        rest = w - (2 * q * a + steps) // (2 * steps)
        met.setdefault(rest, []).append(a % steps)
    assert all(sorted(met[rest]) == list(range(steps)) for rest in range(-largest, largest + 1))
    lost = sum(len(messages) for rest, messages in met.items() if abs(rest) > largest)
    assert 0 < lost < 4 * steps


class Placed(SecretKey):
    """Its w are these numbers at first, later as they should be."""

    def __init__(self, rests: list[int], width: int) -> None:
        super().__init__()
        self.rests, self.width = rests, width

    def blind(self, scheme: Scheme, seed: bytes, index: int) -> tuple[Residues, Fractions]:
        if not self.rests:
            return super().blind(scheme, seed, index)
        q, rest, message = math.prod(scheme.primes), self.rests.pop(0), 5
        w = round_up_half(q * message, 2**self.width) + rest
        residues = np.repeat(np.array([w % prime for prime in scheme.primes], np.uint32), DEGREE)
        fraction = (w << 192) // q
        return residues, np.tile(np.array([fraction >> k & (2**64 - 1) for k in (0, 64, 128)], np.uint64), DEGREE)


def round_up_half(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_even_rest_is_sent_and_the_next_is_not(sign: int) -> None:
    width, scheme, seed = 55, Scheme(3, 55, 24, 28), new_seed()
    define_words(Placed([sign * scheme.largest_rest], width), scheme, width, seed, 0)
    with pytest.raises(UnevenRest):
        define_words(Placed([sign * (scheme.largest_rest + 1)], width), scheme, width, seed, 0)


def test_an_upload_with_an_uneven_rest_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another seed, so that neither c1 nor an error is used twice; nothing of the first try is sent."""
    tiling = mask_tiling(4, 64, 8, 32, 14)
    drawn: list[bytes] = []

    def fresh() -> bytes:
        drawn.append(new_seed())
        return drawn[-1]

    def party(channel: Channel, number: int) -> list[bytes]:
        engine = Homomorphic(channel, number)
        if number:
            return []
        engine._secret = Placed([tiling.scheme.largest_rest + 1], 32)
        monkeypatch.setattr(products, "new_seed", fresh)
        return [bytes(part) for part in MatrixJob(tiling, 32).upload(engine)]

    sent, _ = as_parties(party)
    assert len(drawn) == 2
    assert sent[0] == drawn[1] != drawn[0]


def test_what_is_dropped_of_a_rest_is_an_error_of_at_most_half_of_it() -> None:
    """And it is uniform: nothing else is lost of the ciphertext."""
    width, key, seed = 40, SecretKey(), new_seed()
    whole, short = Scheme(3, width, 14), Scheme(3, width, 14, 20)
    data = {scheme: define_words_twice(key, scheme, width, seed) for scheme in (whole, short)}
    assert short.rest_bytes == whole.rest_bytes - 20 * DEGREE // 8
    (first, exact), (second, near) = data[whole], data[short]
    assert np.array_equal(first, second)
    off = difference(exact, near, whole)
    assert -(2**19) <= off.min() < -(2**18)
    assert 2**18 < off.max() <= 2**19
    assert off.std() == pytest.approx(2**20 / math.sqrt(12), rel=0.05)


def define_words_twice(key: SecretKey, scheme: Scheme, width: int, seed: bytes) -> tuple[NDArray[np.uint64], Residues]:
    """The words of ciphertext 0 and its c0; without errors, so that it is the same each time."""
    quiet = SecretKey.__new__(Quiet)
    quiet.__dict__.update(key.__dict__)
    words, rest = define_words(quiet, scheme, width, seed, 0)
    (upload,) = read_defined(scheme, width, 1, seed, rest.tobytes())
    return words, upload[0]


class Quiet(SecretKey):
    def blind(self, scheme: Scheme, seed: bytes, index: int) -> tuple[Residues, Fractions]:
        self.stream = Silence()
        return super().blind(scheme, seed, index)


class Silence(Stream):
    def errors(self, count: int) -> NDArray[np.int8]:
        return np.zeros(count, np.int8)


def difference(first: Residues, second: Residues, scheme: Scheme) -> NDArray[np.int64]:
    """Of two c0 that are close, coefficient by coefficient."""
    prime = scheme.primes[0]
    ordered = []
    for c0 in (first, second):
        out = np.empty(scheme.limbs * DEGREE, np.uint32)
        _native.lattice_backward(basis(scheme.primes), np.ascontiguousarray(c0).reshape(-1), out, "")
        ordered.append(out[:DEGREE].astype(np.int64))
    off = np.mod(ordered[1] - ordered[0], prime)
    return np.asarray(np.where(off > prime // 2, off - prime, off), np.int64)


def test_the_scale_of_words_is_that_of_the_client_and_the_server() -> None:
    scheme = Scheme(3, 40, 14)
    words = RNG.integers(0, 2**40, DEGREE, dtype=np.uint64)
    q = math.prod(scheme.primes)
    expected = round_up_half(q * int(words[5]), 2**40)
    assert int(scale_words(scheme, words, 40)[5]) == expected % scheme.primes[0]


# Keys ----------------------------------------------------------------------------------------------------------


def test_keys_are_made_for_the_primes_that_a_program_packs_with() -> None:
    """Also for several bundles together, whose tilings may be others; too few are refused."""
    width, tilings = 53, WEIGHTS["up"][:3]
    tiling = weight_tiling(*tilings, width, (22, 19))
    assert tiling.key_limbs == 3
    rows, inputs, outputs = tilings
    program: list[Correlation] = []
    for index, name in enumerate("abcdefgh"):
        program.append(ClientMask((rows, inputs), width))
        program.append(WeightProduct(2 * index, name, rows, inputs, 8 * outputs, width, 22))
    limbs = key_limbs(program)
    assert packing_of(program)
    assert limbs <= 4
    for copies in (1, 2, 5):
        assert all(p.tiling.key_limbs <= limbs for p in matrix_products(repeated(program, copies), copies))
    assert Packing.TURNS.bytes_for(3) < 0.3 * Packing.TURNS.key_bytes

    def party(channel: Channel, number: int) -> None:
        engine = Homomorphic(channel, number)
        engine.set_up_packing(Packing.TURNS, 2)
        if number:
            with pytest.raises(ShapeError, match="2 primes"):
                engine.packing_keys.pack(tiling.scheme, tiling.answer_scheme, np.zeros((1, 2, 3, DEGREE), np.uint32), 6)

    as_parties(party)


def test_products_with_keys_for_three_primes_are_as_near() -> None:
    rows, inputs, outputs, width, cuts = WEIGHTS["up"]
    tiling = weight_tiling(rows, inputs, outputs, width, cuts)
    assert max(np.abs(off).max() for off in errors(tiling, width, limbs=tiling.key_limbs)) <= 0.5
