"""The image, the Space and the compose file agree with the package, the app and the documentation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


def test_the_image_installs_this_package_and_serves_the_port_of_the_space() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    image = (DEPLOY / "space/Dockerfile").read_text("utf-8")
    [name, extras] = re.findall(r'^ARG PACKAGE="([\w-]+)\[([\w,]+)\]"$', image, re.MULTILINE)[0]
    assert name == project["name"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert f"{name}[{extras}]" in (DEPLOY / "compose.yaml").read_text("utf-8")
    [port] = re.findall(r"^EXPOSE (\d+)$", image, re.MULTILINE)
    assert f"app_port: {port}\n" in (DEPLOY / "space/README.md").read_text("utf-8")
    assert f"app:{port}\n" in (DEPLOY / "compose.yaml").read_text("utf-8")
    torch = next(line for line in project["dependencies"] if line.startswith("torch"))
    assert f'"{torch.replace(".0,", ",")}"' in image
    assert image.index("USER xformer") < image.index("CMD [")


def test_all_variables_are_documented() -> None:
    files = [path.read_text("utf-8") for path in DEPLOY.rglob("*") if path.is_file()]
    used = {name for text in files for name in re.findall(r"XFORMER_[A-Z_]+", text)}
    documented = set(
        re.findall(r"^\| `(XFORMER_[A-Z_]+)` \|", (ROOT / "docs/serving.md").read_text("utf-8"), re.MULTILINE)
    )
    assert {"XFORMER_HOSTS"} <= used <= documented
