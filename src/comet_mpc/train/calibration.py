"""`calibrate`: the ranges of a model's values after a look at data, and how finely neurons are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.root_rule import DEGREES, FINE_PRECISION
from comet_mpc.functions.rule import PRECISION
from comet_mpc.models.certify import calibrated, universal_rules
from comet_mpc.models.checkpoint import FITTED, CometConfig, Tensors
from comet_mpc.models.stored.checkpoints import save_config
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Encoded, moved_by_rounding, observe, quantiles
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.reading import Data, read_model

CALIBRATION_ROWS = 256
_MANY_ROWS = 2048
"""Where the top of a range is no more than what was seen, times:"""
MARGIN = 2.0
_MOST_MOVED = 0.01
"""By how much the rounding of neurons may move all answers but 1 % of them: other rounding is added."""


@dataclass(frozen=True)
class Calibration:
    """A model's ranges, and what they were set from."""

    config: CometConfig
    values: dict[str, Reals]
    """What every square root is taken of, by site: a sample, its extremes included."""
    rows: int

    def below(self, site: str) -> float:
        """The part of a site's values below its range. They only cost accuracy."""
        seen = [v for name, v in self.values.items() if site in (name, name.rsplit(".", 1)[-1])]
        return float(np.mean(np.concatenate(seen) < self.config.sites[site].rule.low))


def calibrate(
    model: Path | str,
    data: Data | Path | str,
    *,
    margin: float = MARGIN,
    picture: Path | None = None,
    watcher: Watcher | None = None,
) -> Calibration:
    """Sets the ranges of a Comet checkpoint from its rows for training, and rewrites its configuration.

    In the certified form the upper ends are proved from the weights, for every text; data only sets the lower ends, and
    how finely neurons are rounded.

    margin   without a certificate, a range ends at so many times the largest value seen
    picture  draw what was seen and the ranges into this file (.png, .svg or .pdf)
    """
    watcher, data = watcher or Watcher(), Data.of(data)
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigurationError(f"{picture}: the name of a picture ends in .png, .svg or .pdf")
    found = read_model(model, watcher)
    task = data.task_for(found.config)
    rows = data.rows(found, task, "train", watcher)
    made = calibrate_in_memory(found.config, found.tensors, rows, margin, watcher)
    save_config(found.directory, made.config)
    if picture is not None:
        from comet_mpc.train.plot import draw  # matplotlib takes a second to load

        picture.parent.mkdir(parents=True, exist_ok=True)
        draw(made.values, made.config, picture, f"{found.directory.name}: {len(rows)} texts of {task.name}")
    return made


def calibration_rows(config: CometConfig) -> int:
    """How many rows are looked at after training."""
    return CALIBRATION_ROWS if config.certifiable else _MANY_ROWS


def calibrate_in_memory(
    config: CometConfig, tensors: Tensors, rows: Encoded, margin: float, watcher: Watcher
) -> Calibration:
    """One look at the data, and in the certified form one proof."""
    if not {"smu", FITTED} & {config.activation.kind, config.attention.kind}:
        raise ConfigurationError("nothing to calibrate: the model is unmodified (see `comet unify`)")
    net = UnifiedModel.from_tensors(config, tensors)
    with watcher.stage("calibrating") as tick:
        values = observe(net.use("exact"), rows, tick=tick)
    precision = _precision(net, rows, watcher) if rounds_neurons(config) else PRECISION
    with watcher.stage("proving the ranges: layers" if config.certifiable else "fitting rules") as tick:
        config = calibrated(config, tensors, quantiles(values), margin=margin, precision=precision, told=tick)
    return Calibration(config, values, len(rows))


def rounds_neurons(config: CometConfig) -> bool:
    """Whether arguments of a root are opened, and rounded for that."""
    return config.certifiable and config.activation.kind == "smu" and DEGREES.get(config.rule, 0) >= 2


def _precision(net: UnifiedModel, rows: Encoded, watcher: Watcher) -> int:
    """Fraction bits of neurons: more if rounding them moves the answers to these rows too far."""

    def moved(precision: int) -> float:
        with watcher.stage(f"rounding neurons to {precision} bits") as tick:
            net.use("steps", universal_rules(net.config, precision))
            return float(np.quantile(moved_by_rounding(net, rows, tick=tick), 0.99))

    far = moved(PRECISION)
    if far <= _MOST_MOVED:
        return PRECISION
    watcher.say(
        f"neurons get {FINE_PRECISION} fraction bits: rounded to {PRECISION}, they move 1 % of the answers by "
        f"more than {far:.3f}, now by more than {moved(FINE_PRECISION):.3f}"
    )
    return FINE_PRECISION
