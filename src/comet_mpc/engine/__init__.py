"""One program, three ways to run it: planned, in the clear as its plaintext twin, or by two parties on shares.

This page exports what an author of protocols needs.
"""

from comet_mpc.engine.costs import Cost, Network, by_layer, by_operation
from comet_mpc.engine.ops import Give, Open, Reveal, Truncate, TruncateOpen
from comet_mpc.engine.ops.deferred import Deferred
from comet_mpc.engine.ops.operation import Abilities
from comet_mpc.engine.party import Measured, PartySession, Randomness
from comet_mpc.engine.plan import Plan, PlanSession, plan_program
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, WORD, Share, Words, concatenate, decode, encode, ring_width
from comet_mpc.engine.tensors import Given, Opened, Weight
from comet_mpc.engine.twin import TwinSession, run_twin

__all__ = [
    "BOTH",
    "CLIENT",
    "SERVER",
    "WORD",
    "Abilities",
    "Cost",
    "Deferred",
    "Give",
    "Given",
    "Measured",
    "Network",
    "Open",
    "Opened",
    "PartySession",
    "Plan",
    "PlanSession",
    "Polynomial",
    "Randomness",
    "Reveal",
    "Session",
    "Share",
    "Truncate",
    "TruncateOpen",
    "TwinSession",
    "Weight",
    "Words",
    "by_layer",
    "by_operation",
    "concatenate",
    "decode",
    "encode",
    "plan_program",
    "ring_width",
    "run_twin",
    "variables",
]
