"""Frames between two parties: counted channels over memory, TCP and TLS 1.3, certificates, errors that travel."""
