"""The command `comet`.

start     where it begins: Ctrl-C while modules are imported ends it in order
main      the command itself: its subcommands by name, each loaded when it is called
options   what several commands share: options, and what is made of their values
tables    results, as tables for people and as JSON for machines
asking    `comet query` and `comet gateway`: texts in, answers out
demo      `comet demo`
plan      `comet plan`
service   `comet serve`, `deal` and `keys`
train     `comet unify`, `calibrate` and `finetune`
evaluate  `comet eval`
bench     `comet bench`
"""
