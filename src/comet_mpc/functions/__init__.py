"""Non-linear functions on shares, all made of 1/sqrt(t) and sqrt(t), each by a public rule.

rule, rules   what a rule is, and which there are by name
inverse_rule  1/sqrt by a start and a few steps; `minimax` and `row_rule` fit its numbers, with `fit`
root_rule     the root itself by one polynomial: the cheapest
activation    SMU (for GeLU and ReLU) and x/sqrt(1 + x²) (for tanh)
attention     SMU attention, in the certified form and in the paper's
layer_norm    LayerNorm
"""
