"""Measurements and demonstrations, between real processes on this machine. Nothing that serves imports them.

processes   processes that are started, watched and always ended
service     a service whose processes all run on this machine
evaluation  a data set beside the plaintext model: inside the protocol, or by the twin
demo        private predictions by the model that comes with Comet, and what the server saw of them
paper       the paper's own forms inside the protocol: not certified, for research only
bench       time, traffic and errors of operations and of whole models
"""
