"""Other systems beside this one, on the same inputs, each in an environment of its own."""
