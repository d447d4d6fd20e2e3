"""The code of a picture is a script that shows the picture and contains no server paths."""

from __future__ import annotations

from pathlib import Path

from pages.compute.call import script
from tests.pages.code_and_picture import left_by
from tests.pages.conftest import Open, with_weights
from xformer.training.run_store import RunStore


def test_last_expression_is_shown_unless_the_code_prints() -> None:
    assert script(["a = 1", "a + (", "    2)"]).splitlines()[-4:] == [
        "from xformer.viz.export import show",
        "picture = a + (",
        "    2)",
        "show(picture)",
    ]
    for alone in (["print(1)"], ["for i in range(2):", "    print(i)"]):
        assert script(alone) == "\n".join(alone)


def test_code_of_a_run_hides_the_server_path_and_runs_next_to_the_runs_folder(open_page: Open, runs: Path) -> None:
    run = with_weights(RunStore(runs), "mine")
    code = open_page("pages/residual/page.py", model=f"{run}@8", input="4 9 2", picture="norms").code[0].value
    assert str(runs.parent) not in code
    assert "runs folder" in code
    assert code.endswith("show(picture)")
    assert left_by(code, runs.parent)["picture"].to_dict()["datasets"]
