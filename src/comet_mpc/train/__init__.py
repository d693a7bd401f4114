"""Fine-tuning through the very steps that are served. The only package that imports torch (extra `[train]`)."""
