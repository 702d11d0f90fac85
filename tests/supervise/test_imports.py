from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["supervisor", "ignitor"])
def test_what_only_starts_others_imports_no_data_plane_and_no_drawing(module: str):
    heavy = {"numpy", "torch", "zmq", "rich", "mlflow"}
    code = f"import sys, hpcrl.supervise.{module}; print(*sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert found == []
