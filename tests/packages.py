"""Reads attention modules of packages that other people install, in an environment of their own.

python -m tests.packages          builds .venv-packages where it is not there yet, and compares with the packages' own weights
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-packages"
PINNED = (
    "x-transformers==2.31.10", "vit-pytorch==1.26.14", "timm==1.0.31", "torchtune==0.6.1",
    "torchao==0.7.0", "torchvision==0.28.0", "einops==0.8.2", "einx==0.4.3", "frozendict==2.5.1", "loguru==0.7.3",
    "torch-einops-utils==0.2.0", "tiktoken==0.14.0", "sentencepiece==0.2.3", "blobfile==3.3.0", "omegaconf==2.4.0",
    "datasets==5.2.0", "multiprocess==0.70.19", "dill==0.4.1", "xxhash==4.1.0",
)  # fmt: skip
"""The packages, and what their modules import."""


def main() -> int:
    """Build, install, test; the exit code of the tests. PyTorch and the test tools are those of this environment."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    python, wanted = ENVIRONMENT / "bin" / "python", "\n".join(PINNED)
    done = ENVIRONMENT / "packages.txt"
    if not done.exists() or done.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)}))
        (site / "base.pth").write_text(sysconfig.get_path("purelib"))
        options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps"]
        subprocess.run([str(python), "-m", "pip", "install", *options, *PINNED], check=True)
        done.write_text(wanted)
    command = [str(python), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "default"]
    command.append("tests/program/test_packages.py")
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    sys.exit(main())
