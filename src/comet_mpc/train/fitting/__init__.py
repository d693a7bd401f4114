"""A model fitted to its original by least squares."""
