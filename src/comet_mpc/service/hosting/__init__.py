"""The server's processes: who comes in, whose turn it is, one process for every connection, what an operator sees.

front     the front desk: connections come in, wait, and get a process; requests wait for their turn
turns     whose turn it is, as a rule of its own
cores     whether the machine has one to spare
worker    the process of one connection
lookout   metrics and health by HTTP, in a process of its own
lifeline  processes that end with the one that started them
"""
