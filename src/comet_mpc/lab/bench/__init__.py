"""Measurements between real processes: single operations, truncation, and a demonstration.

workers      processes that are started, watched and always ended
cases        which operations, by which methods, on which inputs
operations   one case between a dealer and two parties, measured
tables       what was measured, for people and for machines
truncation   exactness of the truncation on many values
demo         private predictions by the bundled model
models       whole models with random weights
profile      where the time of a query goes
network      a slower network, in user space
"""
