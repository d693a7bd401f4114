"""Recorded results as tables and drawings: one page for people, and the tables of the documents."""
