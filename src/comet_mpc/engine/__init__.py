"""One program, three ways to run it: planned, in the clear as its plaintext twin, or by two parties on shares."""
