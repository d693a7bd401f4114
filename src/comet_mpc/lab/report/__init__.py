"""Recorded results as tables and drawings: one page for people, and the tables of the documents.

records    the JSON files of a directory, sorted by what they hold
grid       a table, for a terminal, for Markdown and for the page
costs      tables of bytes, rounds and time
accuracy   tables of scores
published  the paper's tables, its numbers beside ours
charts     drawings as SVG, in colours that follow the reader's
drawings   which drawings there are, and from which records
trade_off  accuracy against bytes
page       the page
documents  the generated blocks of Markdown files
"""
