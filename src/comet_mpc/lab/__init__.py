"""Measurements: accuracy inside the protocol, the demonstration, the paper's own forms (research only)."""
