"""Time, traffic and errors, measured between real processes.

cases       which operations, by which methods, on which inputs
network     a slower network, in user space
parties     what both parties of a measurement do around the program
operations  one operation, compared with its plan and with the exact function
models      a whole model with random weights
profile     where the time of a query goes
truncation  whether truncation is exact, on many values
"""
