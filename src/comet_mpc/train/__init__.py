"""Converting, training, calibrating and evaluating models. The only package that imports torch (extra `[train]`).

    adopt      a trained model in the certified form, trained to answer as before: unify and finetune in one
    adopt_writer  a decoder in the form that is served, fitted to texts that it writes itself
    unify      a model in another form: its weights stay, its non-linear functions change
    finetune   trains a model for a task, through the very steps that are served
    calibrate  sets the ranges of a model's values from data
    evaluate   measures a model's accuracy in the clear

Each takes a directory (or a name on the hub) and gives a typed result. `comet` commands of these names call them.
"""

from comet_mpc.errors import needs_extra

with needs_extra("train"):
    from comet_mpc.train.adoption import USUAL_RECIPE, Adoption, adopt, prepare_adoption
    from comet_mpc.train.calibration import Calibration, calibrate
    from comet_mpc.train.decoders.adoption import (
        PreparedWriter,
        WriterAdoption,
        WriterRecipe,
        adopt_writer,
        prepare_writer,
        writes,
    )
    from comet_mpc.train.evaluation import Evaluation, evaluate
    from comet_mpc.train.forms import Form, Unified, unify
    from comet_mpc.train.loop import Recipe
    from comet_mpc.train.reading import Data, find_model
    from comet_mpc.train.tuning import Tuned, finetune

__all__ = [
    "USUAL_RECIPE",
    "Adoption",
    "Calibration",
    "Data",
    "Evaluation",
    "Form",
    "PreparedWriter",
    "Recipe",
    "Tuned",
    "Unified",
    "WriterAdoption",
    "WriterRecipe",
    "adopt",
    "adopt_writer",
    "calibrate",
    "evaluate",
    "find_model",
    "finetune",
    "prepare_adoption",
    "prepare_writer",
    "unify",
    "writes",
]
