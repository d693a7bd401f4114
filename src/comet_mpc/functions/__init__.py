"""Non-linear functions on shares, made of 1/sqrt(t) and sqrt(t), each by a public rule, or fitted to the model.

rule, rules   what a rule is, and which there are by name
inverse_rule  1/sqrt by a start and a few steps; `minimax` and `row_rule` fit its numbers, with `fit`
root_rule     the root itself by one polynomial: the cheapest
neurons       what is computed of every neuron: SMU, or a square that stands for any quadratic
weighing      what weight a score gets in attention: SMU, or a quartic of every head's own
constants     private numbers of the server's that are added to shares
activation    SMU (for GeLU and ReLU) and x/sqrt(1 + x²) (for tanh)
attention     attention in the certified, the fitted and the paper's form
layer_norm    LayerNorm
"""
