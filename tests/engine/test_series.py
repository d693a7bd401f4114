"""Programs that share a session: what one has opened, a later one uses without opening it again."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
import pytest

from comet_mpc.engine.correlations import AnyMask
from comet_mpc.engine.ops import Truncate
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import plan_program, plan_series
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import CLIENT, Reals, Share
from comet_mpc.engine.tensors import Given, Opened
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RandomnessExhausted, ShapeError
from comet_mpc.testing import Weights, run_series, run_two_parties

FRACTION, BOUND, SIZE = 10, 4.0, 6
KEYS = np.random.default_rng(1).uniform(-BOUND, BOUND, (5, SIZE))
QUERIES = np.random.default_rng(2).uniform(-BOUND, BOUND, (2, SIZE))
Source = Literal["dealer", "pair"]


def _private(session: Session, values: Reals) -> Share:
    return session.private(CLIENT, values.shape, FRACTION, BOUND, values)


def prompt(session: Session, weights: Weights) -> Share:
    """Opens the keys, once and for the whole conversation."""
    keys = session.open(_private(session, KEYS))
    session.keep("keys", keys)
    return session.square_sum(keys)


def token(row: int, session: Session, weights: Weights) -> Share:
    """Scores of one more query against keys that an earlier program has opened."""
    query = session.open(_private(session, QUERIES[row : row + 1]))
    return session.matmul(query, session.kept("keys", Opened), transposed=True)


def first(session: Session, weights: Weights) -> Share:
    return token(0, session, weights)


def second(session: Session, weights: Weights) -> Share:
    return token(1, session, weights)


CONVERSATION = [prompt, first, second]


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_later_program_uses_what_an_earlier_one_opened(source: Source) -> None:
    """`run_series` compares bytes, rounds and correlations of every program with its plan, and results with the twin's.

    Only a query is sent for a token: 8 bytes an element and a frame's header, as if there were no keys."""
    runs = run_series(CONVERSATION, source=source, tolerance=0.0)
    for row, run in enumerate(runs[1:]):
        query, keys = (np.rint(values * 2**FRACTION) for values in (QUERIES[row : row + 1], KEYS))
        np.testing.assert_array_equal(run.value, query @ keys.T / 2 ** (2 * FRACTION))
        alone = plan_program(lambda session: session.open(_private(session, QUERIES[:1])))
        assert run.plan.online_bytes == alone.online_bytes
        assert run.plan.rounds == 1


def test_no_mask_is_drawn_twice() -> None:
    """Every mask of a series is a correlation of its own in one bundle, which hands each out once. Both tokens refer to
    the keys' mask. The control opens the keys again for each token, and needs a mask each time."""

    def again(session: Session) -> Share:
        prompt(session, {})
        return first(session, {})

    series = plan_series([lambda session: prompt(session, {}), *[lambda session: first(session, {})] * 2])
    masks = [i for i, each in enumerate(series.whole.correlations) if isinstance(each, AnyMask)]
    assert len(masks) == 3  # the keys', and one for each query
    uses = Counter(ref.mask for each in series.whole.correlations for ref in each.facts.references)
    assert uses[masks[0]] == 3  # squares, and two products
    assert sum(isinstance(each, AnyMask) for each in plan_series([again, again]).whole.correlations) == 4


def test_the_whole_is_the_programs_one_after_another() -> None:
    series = plan_series([lambda session, program=program: program(session, {}) for program in CONVERSATION])  # type: ignore[misc]
    assert sum((plan.correlations for plan in series.programs), ()) == series.whole.correlations
    assert sum((plan.schedule for plan in series.programs), ()) == series.whole.schedule
    assert sum((plan.parts for plan in series.programs), ()) == series.whole.parts


def test_the_digest_names_where_programs_end() -> None:
    """Otherwise a party could take one long program for two short ones."""

    def both(session: Session) -> None:
        prompt(session, {})
        first(session, {})

    apart = plan_series([lambda session: prompt(session, {}), lambda session: first(session, {})]).whole
    together = plan_series([both]).whole
    assert apart.correlations == together.correlations
    assert apart.digest != together.digest


def test_a_series_that_goes_on_too_long_runs_out_of_randomness() -> None:
    """Nothing is drawn again: a program that was not planned gets nothing."""

    def one_more(session: Session, weights: Weights) -> Share:
        if isinstance(session, PartySession):  # does what the plan does not know of
            first(session, weights)
        return first(session, weights)

    with pytest.raises(RandomnessExhausted):
        run_series([prompt, one_more])


def test_only_what_was_kept_can_be_used() -> None:
    session = TwinSession()
    with pytest.raises(ShapeError, match="'keys'"):
        session.kept("keys", Opened)
    prompt(session, {})
    assert session.kept("keys", Opened).shape == KEYS.shape
    with pytest.raises(ShapeError, match="Given"):
        session.kept("keys", Given)


def test_sessions_do_not_share_what_they_keep() -> None:
    prompt(TwinSession(), {})
    with pytest.raises(ShapeError):
        TwinSession().kept("keys", Opened)


def test_nothing_is_put_off_from_one_program_to_the_next() -> None:
    def leaves_something(session: Session) -> None:
        session.defer(Truncate(_private(session, KEYS), 4))

    plan_program(leaves_something)
    with pytest.raises(ShapeError, match="deferred"):
        plan_series([leaves_something])


def test_one_program_is_a_series_of_one() -> None:
    alone = run_two_parties(prompt, tolerance=0.0)
    (run,) = run_series([prompt], tolerance=0.0)
    assert alone.plan == run.plan
    np.testing.assert_array_equal(alone.value, run.value)
