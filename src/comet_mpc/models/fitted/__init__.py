"""Functions that are fitted to a model, neuron by neuron and head by head."""
