"""Reads attention modules of packages, grades with nbgrader and Otter-Grader, and reports to trackers, in its own environment.

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
    "nbgrader==0.9.6", "alembic==1.20.1", "mako==1.4.3", "notebook==7.6.5", "rapidfuzz==3.14.6", "sqlalchemy==2.1.9",
    "otter-grader==7.0.0", "alabaster==1.0.0", "docutils==0.22.4", "fica==0.4.1", "imagesize==2.0.1", "ipylab==1.1.0",
    "jupytext==1.19.6", "mdit-py-plugins==0.7.0", "python-frontmatter==1.3.0", "python-on-whales==0.81.0",
    "roman-numerals==4.1.0", "snowballstemmer==3.1.1", "sphinx==9.0.4", "sphinxcontrib-applehelp==2.0.0",
    "sphinxcontrib-devhelp==2.0.0", "sphinxcontrib-htmlhelp==2.1.0", "sphinxcontrib-jsmath==2.0.0",
    "sphinxcontrib-qthelp==2.0.0", "sphinxcontrib-serializinghtml==2.0.0", "wrapt==1.17.3",
    "wandb==0.31.0", "trackio==0.43.0", "mlflow-skinny==3.17.2", "tensorboard==2.21.0", "tensorboard-data-server==0.7.2",
    "absl-py==2.5.1", "brotli==1.2.1", "cachetools==7.3.3", "databricks-sdk==0.162.0", "distro==1.9.0", "fastapi==0.165.0",
    "gitdb==4.0.12", "gitpython==3.2.1", "google-auth==2.63.0", "gradio-client==2.7.2", "grpcio==1.85.3",
    "importlib-metadata==9.1.0", "cryptography==50.0.2", "pyasn1==0.6.5", "opentelemetry-api==1.45.2",
    "opentelemetry-sdk==1.45.2", "opentelemetry-proto==1.45.2",
    "opentelemetry-semantic-conventions==0.66b2", "orjson==3.13.0", "pyasn1-modules==0.4.2", "python-dotenv==1.2.4",
    "smmap==5.0.3", "sqlparse==0.6.1", "werkzeug==3.1.9", "zipp==4.1.2",
    "marimo==0.25.2", "markdown==3.11.3", "loro==1.17.1", "msgspec==0.23.0", "pymdown-extensions==11.0.2", "tomlkit==0.15.2",
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
    command += [
        "tests/program/test_packages.py",
        "tests/assignments/test_graders.py",
        "tests/integrations/test_trackers.py",
        "tests/browser/test_notebook_hosts.py",
    ]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    sys.exit(main())
