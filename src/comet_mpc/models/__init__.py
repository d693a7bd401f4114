"""Models in the clear and as they are served.

checkpoint    files of a Comet model: its configuration and its tensors
bounds        what weights prove about every input
certify       from that, intervals and rules; and the proof, again, when a checkpoint is loaded
heads         what is made of the last states: labels of texts or tokens, or embeddings
transformer   the encoder and its head on shares
fold          weights as the protocol wants them, γ and β of LayerNorms folded in; the model they make in the clear
served        what the server holds, what the client is given, and the program both run
hugging_face  BERT, DistilBERT, RoBERTa and MPNet from a directory or the hub
tasks         labelled data sets and their metrics
"""

from comet_mpc.models.certify import certify, check_ranges
from comet_mpc.models.checkpoint import CometConfig, load_checkpoint, save_checkpoint
from comet_mpc.models.served import PublicModel, Query, ServedModel
from comet_mpc.models.tasks import TASKS, Task, find_task
from comet_mpc.models.transformer import SHAPES, EncoderShape

__all__ = [
    "SHAPES",
    "TASKS",
    "CometConfig",
    "EncoderShape",
    "PublicModel",
    "Query",
    "ServedModel",
    "Task",
    "certify",
    "check_ranges",
    "find_task",
    "load_checkpoint",
    "save_checkpoint",
]
