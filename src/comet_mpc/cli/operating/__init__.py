"""`comet serve`, `comet deal` and `comet keys`: what operators run."""
