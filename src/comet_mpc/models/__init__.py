"""Models in the clear and as they are served."""
