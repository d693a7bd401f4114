"""The functions of a Transformer on shares, all made of 1/sqrt(t); and those of other systems, for comparison."""
