"""`comet serve`, `comet deal` and `comet keys`: what operators run.

service  `comet serve` and `comet deal`
keys     `comet keys`: certificates
"""
