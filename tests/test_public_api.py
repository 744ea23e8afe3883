from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import steptime


def test_all_is_sorted_and_complete() -> None:
    assert steptime.__all__ == sorted(steptime.__all__)
    assert set(steptime.__all__) <= set(dir(steptime))
    assert [name for name in steptime.__all__ if getattr(steptime, name, None) is None] == []
    # What a type checker sees is what there is.
    tree = ast.parse(inspect.getsource(steptime))
    typed = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert typed - {"annotations", "import_module", "TYPE_CHECKING"} == {*steptime.__all__} - {"__version__"}


def test_each_name_is_the_one_of_its_room() -> None:
    from steptime import errors, model, pipeline, store
    from steptime.capture import watch
    from steptime.report import tables

    assert steptime.Options is pipeline.Options
    assert steptime.analyze is pipeline.analyze
    assert (steptime.watch, steptime.WatchSettings) == (watch.watch, watch.WatchSettings)
    assert steptime.Report is model.Report
    assert steptime.StepTimeError is errors.StepTimeError
    assert (steptime.load, steptime.save) == (store.load, store.save)
    assert (steptime.causes_table, steptime.kernels_table) == (tables.causes_table, tables.kernels_table)
    assert (steptime.leaves_table, steptime.steps_table) == (tables.leaves_table, tables.steps_table)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        _ = steptime.analyse  # type: ignore[attr-defined]


def test_importing_the_package_imports_nothing_heavy(repo: Path) -> None:
    code = (
        "import sys, steptime; print(sorted({'numpy', 'pandas', 'msgspec', 'click', 'rich', 'torch'} & {*sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=repo, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
