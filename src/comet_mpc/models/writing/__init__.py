"""How a client writes: it picks each token by itself, and guesses the next ones so that one run gives several."""
