"""ViT and DINOv2 from Hugging Face: the same answers as their own library's, and one way to a private model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra [train]")
transformers = pytest.importorskip("transformers", reason="training needs the extra [train]")

from comet_mpc import train  # noqa: E402
from comet_mpc.errors import CheckpointError, ConfigurationError, TaskDataError  # noqa: E402
from comet_mpc.models.hugging_face import load_hugging_face  # noqa: E402
from comet_mpc.models.images.reading import read_image  # noqa: E402
from comet_mpc.models.served import ServedModel  # noqa: E402
from comet_mpc.models.stored.checkpoints import load_checkpoint  # noqa: E402
from comet_mpc.progress import Watcher  # noqa: E402
from comet_mpc.train.batches import predict  # noqa: E402
from comet_mpc.train.model import UnifiedModel  # noqa: E402
from comet_mpc.train.reading import Data, read_model  # noqa: E402
from support.toy_vision import some_images  # noqa: E402

pytestmark = pytest.mark.train

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 20, "patch_size": 4,
    "hidden_dropout_prob": 0.0,
}  # fmt: skip


def _checkpoint(directory: Path, architecture: str) -> Path:
    torch.manual_seed(0)
    if architecture == "vit":
        config = transformers.ViTConfig(**SIZES, intermediate_size=64, num_labels=3)
        model = transformers.ViTForImageClassification(config)
    else:
        config = transformers.Dinov2Config(**SIZES, mlp_ratio=2, layerscale_value=0.5)
        model = transformers.Dinov2Model(config)
    for name, value in model.named_parameters():  # nothing is one or zero, as it is to begin with
        value.data += torch.randn_like(value) * (0.3 if "position" in name or "cls" in name else 0.1)
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("architecture", "size"), [("vit", 20), ("dinov2", 20), ("dinov2", 12)])
def test_a_model_answers_as_its_own_library_does(tmp_path: Path, architecture: str, size: int) -> None:
    """Positions of another size are interpolated as the original does it."""
    config, tensors, absent = load_hugging_face(_checkpoint(tmp_path, architecture), image_size=size)
    assert not absent
    assert config.encoder.image is not None
    images = some_images(3, size, size)
    rows = np.stack([read_image(one, config.encoder.image).rows for one in images])
    kind = transformers.ViTForImageClassification if architecture == "vit" else transformers.Dinov2Model
    original = kind.from_pretrained(tmp_path).eval()
    pixels = torch.tensor(np.stack(images)).permute(0, 3, 1, 2).float() / 255 * 2 - 1
    with torch.no_grad():
        found = original(pixels)
        wanted = found.logits if architecture == "vit" else found.last_hidden_state[:, 0]
        given = torch.tensor(rows, dtype=torch.float32)
        got = UnifiedModel.from_tensors(config, tensors).eval()(given, torch.ones(given.shape[:2]))[0]
    torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


def test_a_model_is_converted_calibrated_and_served(tmp_path: Path) -> None:
    """The plain model of training and the one that is served are the same, through the rules."""
    source = _checkpoint(tmp_path / "source", "vit")
    made = train.unify(source, tmp_path / "made", image_size=12)
    assert not made.untrained
    images = tmp_path / "images.npy"
    np.save(images, np.stack(some_images(10, 12, 12)))
    calibrated = train.calibrate(tmp_path / "made", images)
    assert calibrated.rows == 8
    assert not (tmp_path / "made" / "tokenizer.json").exists()
    model = ServedModel.load(tmp_path / "made")
    (run,) = model.runs(some_images(2, 12, 12, seed=1), 2)
    query = model.query(run.tokens)
    net = UnifiedModel.from_tensors(*load_checkpoint(tmp_path / "made")).use("served").eval()
    with torch.no_grad():
        got = net(torch.tensor(query.rows, dtype=torch.float32), torch.ones(query.rows.shape[:2]))[0].numpy()
    np.testing.assert_allclose(got, model.plain_logits(query), atol=2e-3)


def test_a_size_that_patches_do_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--image-size"):
        load_hugging_face(_checkpoint(tmp_path, "dinov2"), image_size=13)


def _images(path: Path, count: int) -> Path:
    np.save(path, np.stack(some_images(count, 12, 12)))
    return path


def _off(made: Path, original: Path, images: Path) -> float:
    """How far answers as served are off the original's, relative to how much those vary, on images held out."""
    first = read_model(original, Watcher(), image_size=12)
    found = read_model(made, Watcher())
    task = Data(images).task_for(first.config)
    rows = Data(images).rows(first, task, "dev", Watcher())
    theirs = predict(UnifiedModel.from_tensors(first.config, first.tensors).use("exact"), rows)
    mine = predict(UnifiedModel.from_tensors(found.config, found.tensors).use("served"), rows)
    return float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs - theirs.mean(0)))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["vit", "dinov2"])
def test_adopting_comes_nearer_than_converting(tmp_path: Path, architecture: str) -> None:
    """The fit is of the stream, and what is compared is what is served. A finished run is not run again."""
    source, images = _checkpoint(tmp_path / "source", architecture), _images(tmp_path / "images.npy", 150)
    train.unify(source, tmp_path / "unified", train.Form(rule="near"), image_size=12)
    train.calibrate(tmp_path / "unified", images)
    out = tmp_path / "adopted"
    made = train.adopt(source, images, out, rule="near", trained=False, image_size=12)
    off = _off(out, source, images)
    assert off < 0.5 * _off(tmp_path / "unified", source, images)
    assert off < 0.3
    assert (made.images, made.fitted_tokens, made.costs.tokens) == (True, 108 * 10, 10)
    assert next(iter(made.agreement.values())) > 95.0
    assert load_checkpoint(out)[0].certified
    assert not (out / "tokenizer.json").exists()
    again = train.adopt(source, images, out, rule="near", trained=False, image_size=12)
    assert again.fingerprint == made.fingerprint


@pytest.mark.slow
def test_a_model_of_images_is_trained_if_it_is_asked_for(tmp_path: Path) -> None:
    source, images = _checkpoint(tmp_path / "source", "dinov2"), _images(tmp_path / "images.npy", 60)
    recipe = train.Recipe(epochs=1.0, batch=16, dropout=0.0)
    made = train.adopt(source, images, tmp_path / "out", recipe, rule="fitted", trained=True, image_size=12)
    assert made.updates == 3


def test_bad_images_are_refused_with_the_reason(tmp_path: Path) -> None:
    source = _checkpoint(tmp_path / "source", "dinov2")

    def adopt(data: Data | Path) -> None:
        train.adopt(source, data, tmp_path / "out", image_size=12)

    with pytest.raises(TaskDataError, match="directory of images"):
        adopt(tmp_path / "absent.npy")
    with pytest.raises(TaskDataError, match="too few images"):
        adopt(_images(tmp_path / "two.npy", 2))
    with pytest.raises(TaskDataError, match="too few rows to fit: 3 rows"):
        adopt(_images(tmp_path / "four.npy", 5))
    with pytest.raises(ConfigurationError, match="leave these options out"):
        adopt(Data(_images(tmp_path / "some.npy", 60), texts=("text",)))
    with pytest.raises(CheckpointError, match="--image-size"):
        train.adopt(source, tmp_path / "some.npy", tmp_path / "out", image_size=13)
    assert not (tmp_path / "out").exists()
