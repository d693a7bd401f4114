"""The server's processes: who comes in, whose turn it is, one process for every connection, what an operator sees."""
