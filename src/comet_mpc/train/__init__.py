"""Fine-tuning through the very steps that are served. The only package that imports torch (extra `[train]`)."""

from comet_mpc.errors import ConfigurationError

try:
    from comet_mpc.train.batches import (
        Encoded,
        answered,
        encode,
        first_rows,
        hold_out,
        inputs_seen,
        make_tokenizer,
        moved_by_rounding,
        observe,
        predict,
        quantiles,
    )
    from comet_mpc.train.estimate import estimated_seconds
    from comet_mpc.train.loop import Recipe, finetune, load_model
    from comet_mpc.train.model import Mode, UnifiedModel
    from comet_mpc.train.pickled import read_pickled
    from comet_mpc.train.plot import draw
    from comet_mpc.train.steps import other_rules, through_rules
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("comet_mpc"):
        raise
    raise ConfigurationError(
        f"training needs {error.name}, which is not installed: pip install 'comet-mpc[train]'"
    ) from error

__all__ = [
    "Encoded",
    "Mode",
    "Recipe",
    "UnifiedModel",
    "answered",
    "draw",
    "encode",
    "estimated_seconds",
    "finetune",
    "first_rows",
    "hold_out",
    "inputs_seen",
    "load_model",
    "make_tokenizer",
    "moved_by_rounding",
    "observe",
    "other_rules",
    "predict",
    "quantiles",
    "read_pickled",
    "through_rules",
]
