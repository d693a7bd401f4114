"""Other systems beside this one, on the same inputs, each in an environment of its own.

inputs          what all of them compute: operations and one encoder layer, with exact results
crypten_party   one party of CrypTen, run by its environment's Python
spu_parties     both parties of SPU, run by its environment's Python
environments    virtual environments for them, made when they are needed
compare         runs everything, and says what came out
"""
