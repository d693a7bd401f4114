"""`comet query` and `comet gateway`: texts in, answers out.

texts    what is read: from the command line, a file of lines, or a column of a CSV file
answers  files of answers that a broken run goes on with
query    `comet query`
gateway  `comet gateway`
"""
