"""Comet's laboratory: measurements, the paper's tables, other systems beside ours, and the report of all of it."""
