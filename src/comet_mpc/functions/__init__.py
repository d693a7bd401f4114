"""Non-linear functions on shares, all made of 1/sqrt(t) and sqrt(t).

fit           minimax coefficients in real numbers
minimax       the rule that serves: from an interval to a few public numbers, and what they guarantee
root_rule     the root itself by one polynomial: the cheapest
table_rule    1/sqrt from public tables
flooding      the paper's guess on flooded shares: not private, for research only
inverse_sqrt  1/sqrt by a rule chosen by name
activation    SMU (for GeLU and ReLU) and x/sqrt(1 + x²) (for tanh)
attention     SMU attention, in the certified form and in the paper's
layer_norm    LayerNorm
baselines     the functions of CrypTen and MPCFormer, for comparison
"""

from comet_mpc.functions.activation import Smu, smu, smu_rule, tanh_like, tanh_like_rule
from comet_mpc.functions.attention import AttentionForm, attention, certified_attention, certified_form, paper_form
from comet_mpc.functions.inverse_rule import MinimaxRule, RuleStep
from comet_mpc.functions.inverse_sqrt import RULES, InverseSqrtRule, NewtonRule, inverse_sqrt, make_rule
from comet_mpc.functions.layer_norm import layer_norm, layer_norm_rule
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.root_rule import DEGREES, RootRule, root_rule
from comet_mpc.functions.table_rule import TableRule

__all__ = [
    "DEGREES",
    "RULES",
    "AttentionForm",
    "InverseSqrtRule",
    "MinimaxRule",
    "NewtonRule",
    "RootRule",
    "RuleStep",
    "Smu",
    "TableRule",
    "attention",
    "certified_attention",
    "certified_form",
    "inverse_sqrt",
    "layer_norm",
    "layer_norm_rule",
    "make_rule",
    "minimax_rule",
    "paper_form",
    "root_rule",
    "smu",
    "smu_rule",
    "tanh_like",
    "tanh_like_rule",
]
