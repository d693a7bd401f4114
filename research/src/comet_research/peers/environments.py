"""Virtual environments for other systems, made when they are needed and kept: their versions clash with ours."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from comet_mpc.errors import ConfigurationError
from comet_mpc.service.model_cache import default_cache


@dataclass(frozen=True)
class Environment:
    """A system's environment. packages: with what they need; alone: without. ours: whether it sees this package too."""

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    ours: bool = False

    def is_ready(self, place: Path) -> bool:
        return (place / self.name / "ready").exists()

    def python(self, place: Path) -> Path:
        """Its interpreter. Makes the environment the first time, which takes minutes and a network or a cache."""
        home = place / self.name
        interpreter, ready = home / "bin" / "python", home / "ready"
        if not self.is_ready(place):
            venv.create(home, with_pip=True)
            if self.ours:
                line = f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n"
                own = subprocess.run(
                    [interpreter, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                (Path(own.stdout.strip()) / "zz_comet.pth").write_text(line)
            self._install(interpreter, list(self.packages))
            if self.alone:
                self._install(interpreter, ["--no-deps", *self.alone])
            ready.touch()
        return interpreter

    def _install(self, interpreter: Path, words: list[str]) -> None:
        done = subprocess.run(
            [interpreter, "-m", "pip", "install", "--quiet", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ConfigurationError(
                f"{self.name} could not be installed into {interpreter.parent.parent}: {done.stderr.strip()[-400:]}"
            )


CRYPTEN = Environment(
    "crypten", ("torch==2.13.0", "numpy", "onnx", "pandas", "pyyaml", "omegaconf"), ("crypten==0.4.1",), True
)
SPU = Environment("spu", ("spu==0.9.5",))


def default_place() -> Path:
    """Where they are kept unless a command says otherwise."""
    return default_cache() / f"peers-{sys.version_info.major}.{sys.version_info.minor}"
