"""Measurements and demonstrations, between real processes on this machine. Nothing that serves imports them."""
