"""One program, three ways to run it: planned, in the clear as its plaintext twin, or by two parties on shares.

    share         fixed point numbers, and shares of them with their scale and bound
    polynomial    polynomials as they stand on paper
    session       what a program is written against
    requests      what a program asks of its session, and what it gets
    tables        public tables that are looked up at secret places
    correlations  the kinds of correlated randomness, as descriptions
    demand        which correlation every request and step uses
    plan, costs   a program without data: bytes, rounds, randomness; sums of them, and time on a network
    twin          a program in the clear
    party         a program for real, one party's side
    seeds         randomness of the operating system, expanded by AES
    kernels       arithmetic in Z_2^64, in C++

This page exports what an author of protocols needs.
"""

from comet_mpc.engine.costs import Cost, Network, by_layer, by_operation
from comet_mpc.engine.party import Measured, PartySession, Randomness
from comet_mpc.engine.plan import Plan, PlanSession, plan_program
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.requests import Deferred, Give, Given, Open, Opened, Reveal, Truncate, TruncateOpen, Weight
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, WORD, Share, Words, concatenate, decode, encode, ring_width
from comet_mpc.engine.tables import Column, Table
from comet_mpc.engine.twin import TwinSession, run_twin

__all__ = [
    "BOTH",
    "CLIENT",
    "SERVER",
    "WORD",
    "Column",
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
    "Table",
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
