"""A tokenizer from a file of its own, or from a model's directory."""

from __future__ import annotations

from pathlib import Path

from comet_mpc.errors import CheckpointError, ConfigurationError, needs_extra
from comet_mpc.models.stored.checkpoints import read_tokenizer
from comet_mpc.models.tokenizers.texts import TextTokenizer


def own_tokenizer(path: Path) -> TextTokenizer:
    """A client's own tokenizer: a tokenizer.json, or a directory with one or with older files."""
    try:
        stored = tokenizer_json(path) if path.is_dir() else path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} as a tokenizer: {error.strerror}") from error
    return TextTokenizer.load(stored, path)


def tokenizer_json(directory: Path) -> bytes:
    """The tokenizer as one file, made from older files where there is none."""
    path = directory / "tokenizer.json"
    if path.exists():
        return read_tokenizer(directory)
    if not any((directory / name).exists() for name in ("vocab.txt", "vocab.json")):
        raise CheckpointError(f"{directory} has no tokenizer: neither tokenizer.json nor vocab.txt nor vocab.json")
    try:
        with needs_extra("train"):
            from transformers import AutoTokenizer
        made = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
        return bytes(made.backend_tokenizer.to_str().encode())
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{directory}: its files do not make a tokenizer: {error}") from error


def servable_tokenizer(directory: Path, vocabulary: int) -> bytes:
    """The same as `tokenizer_json`, if clients will take it from a server: said before anything is trained."""
    stored = tokenizer_json(directory)
    TextTokenizer.load(stored, directory).check_fits(vocabulary)
    return stored
