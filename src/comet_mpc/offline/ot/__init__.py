"""Oblivious transfer between the two parties: base transfers, their extension, 1-of-M transfers of table entries."""
