"""Time, traffic and errors, measured between real processes."""
