"""Decoders: fitted functions by least squares on texts, which a model may have written itself."""
