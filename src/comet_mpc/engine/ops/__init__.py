"""The operations that programs are made of, one module each.

Requests communicate, several at a time in one round:

    Open(x)              both parties learn x - a, for a fresh uniform mask a
    Truncate(x, d)       a share of x / 2^d, off by less than one unit, unbiased; one masked bit each way (or nothing)
    TruncateOpen(x, d)   both in one round and without the bits, at the price of more correlated randomness
    Give(x)              the server learns x - a, for a mask a that the client alone knows
    TableLine(x, d)      a line of a public table at the cell that x is in, from one opening of x
    Reveal(x, to)        the result: a party learns x itself

Steps are local: polynomials in opened tensors, matrix products, products with the server's weights, sums of squares.
A program writes requests itself; steps are made by the methods of `Session`.
"""

from comet_mpc.engine.ops.evaluate import Evaluate
from comet_mpc.engine.ops.give import Give
from comet_mpc.engine.ops.matmul import MatMul
from comet_mpc.engine.ops.open import Open
from comet_mpc.engine.ops.operation import Registry, Request, Step
from comet_mpc.engine.ops.reveal import Reveal
from comet_mpc.engine.ops.square_sum import SquareSum
from comet_mpc.engine.ops.table_line import TableLine
from comet_mpc.engine.ops.truncate import Truncate
from comet_mpc.engine.ops.truncate_open import TruncateOpen
from comet_mpc.engine.ops.weigh import Weigh

OPERATIONS = Registry(Open, Truncate, TruncateOpen, Give, Reveal, Evaluate, MatMul, Weigh, SquareSum, TableLine)
"""All that may travel between the parties, and all local steps. Sessions refuse what is not in it."""

__all__ = [
    "OPERATIONS",
    "Evaluate",
    "Give",
    "MatMul",
    "Open",
    "Request",
    "Reveal",
    "SquareSum",
    "Step",
    "TableLine",
    "Truncate",
    "TruncateOpen",
    "Weigh",
]
