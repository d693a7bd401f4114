"""Models in the clear and as they are served."""

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
