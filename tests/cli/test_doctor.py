import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.checks import files, host, packages
from hpcrl.cli.checks.finding import Finding
from hpcrl.cli.doctor import lines, verdict
from hpcrl.cli.main import cli


def script(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("requirement", "found", "status"),
    [
        ("torch>=2.11,<2.15", "2.13.0+cpu", "ok"),
        ("torch>=2.11,<2.15", "2.15.0", "fail"),
        ("torch>=2.11,<2.15", None, "fail"),
        ("torchtitan==0.3.0", "0.3.1", "fail"),
        ('ruff>=0.12; extra == "dev"', "0.1", "warn"),
        ('ruff>=0.12; extra == "dev"', "0.13", "ok"),
    ],
)
def test_packages_are_held_against_what_is_asked(requirement: str, found: str | None, status: str) -> None:
    [finding] = packages.check_requirements([requirement], lambda name: found)
    assert finding.status == status
    assert (finding.do == "") == (status == "ok")
    assert finding.do == "" or "pip install" in finding.do


def test_absent_extras_and_other_platforms_are_left_out() -> None:
    asked = ['sglang>=0.5; extra == "gpu"', 'colorama; sys_platform == "win32"']
    assert packages.check_requirements(asked, lambda name: None) == []


@pytest.mark.parametrize(("found", "status"), [("0.1.11", "ok"), ("0.1.12", "fail"), ("0.1.10", "fail"), (None, "fail")])
def test_transfer_queue_is_one_version(found: str | None, status: str) -> None:
    assert packages.check_transfer_queue(lambda name: found).status == status


def test_python_versions() -> None:
    assert packages.check_python(">=3.11,<3.13", "3.11.7").status == "ok"
    assert packages.check_python(">=3.11,<3.13", "3.10.2").status == "fail"


def probe(**more: object) -> str:
    found = {"version": "2.13", "cuda": None, "threads": 2, "distributed": True, "gpus": [], **more}
    return f"import json; print('noise'); print(json.dumps({found!r}))"


def test_torch_is_probed_in_another_process() -> None:
    torch, gpus = packages.check_torch(probe())
    assert (torch.status, gpus.status) == ("ok", "ok")
    _, gpus = packages.check_torch(probe(cuda="13.0", gpus=[{"name": "H200", "gib": 139.8}] * 8))
    assert (gpus.status, gpus.what) == ("ok", "8 x H200 (139.8 GiB)")
    _, gpus = packages.check_torch(probe(cuda="13.0"))
    assert gpus.status == "warn"
    _, distributed, _ = packages.check_torch(probe(distributed=False))
    assert distributed.status == "fail"


def test_a_torch_that_breaks_or_hangs_is_a_finding() -> None:
    [finding] = packages.check_torch("raise OSError('libcudart.so.13: cannot open')")
    assert finding.status == "fail"
    assert "libcudart.so.13" in finding.what
    [finding] = packages.check_torch("import os; os.abort()")
    assert finding.status == "fail"
    [finding] = packages.check_torch("import time; time.sleep(60)", seconds=0.3)
    assert "did not end" in finding.what


def test_slurm_absent_half_there_answering_and_silent(tmp_path: Path) -> None:
    assert host.check_slurm(str(tmp_path)).status == "ok"
    script(tmp_path, "sinfo", 'case "$1" in --version) echo slurm 24.05.1;; *) echo "gpu* 4 gpu:h200:8";; esac')
    finding = host.check_slurm(str(tmp_path))
    assert (finding.status, "sbatch" in finding.what) == ("warn", True)
    for name in ("sbatch", "srun", "scancel"):
        script(tmp_path, name, "exit 0")
    finding = host.check_slurm(str(tmp_path))
    assert finding.status == "ok"
    assert "slurm 24.05.1; partitions: gpu* 4 gpu:h200:8" in finding.what
    script(tmp_path, "sinfo", "exit 1")
    assert host.check_slurm(str(tmp_path)).status == "warn"


def test_gpu_driver_absent_answering_and_silent(tmp_path: Path) -> None:
    assert host.check_driver(str(tmp_path)).status == "ok"
    script(tmp_path, "nvidia-smi", "echo 'H200, 143771 MiB, 580.1'; echo 'H200, 143771 MiB, 580.1'")
    finding = host.check_driver(str(tmp_path))
    assert (finding.status, finding.what) == ("ok", "2 GPUs: H200, 143771 MiB, 580.1")
    script(tmp_path, "nvidia-smi", "exit 9")
    assert host.check_driver(str(tmp_path)).status == "warn"


def test_ports_outside_the_ephemeral_range() -> None:
    assert host.check_ports((32_768, 60_999)).status in ("ok", "warn")
    finding = host.check_ports((1024, 65_535))
    assert finding.status == "fail"
    assert "ip_local_port_range" in finding.do


def test_open_files_and_shared_memory_and_clock(tmp_path: Path) -> None:
    assert host.check_open_files(1024).status == "warn"
    assert host.check_open_files(1 << 20).status == "ok"
    assert host.check_shared_memory(tmp_path / "none").status == "warn"
    assert host.check_clock().status in ("ok", "warn")
    assert host.check_clock(now=1000.0).status == "fail"


def test_a_good_folder_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    findings = files.all_files(tmp_path)
    assert {finding.name for finding in findings} == {
        "free space", "atomic rename", "fsync", "locks", "symbolic links", "file times"
    }  # fmt: skip
    assert not [finding for finding in findings if finding.status == "fail"]
    assert os.listdir(tmp_path) == ["mine"]


def test_bad_folders(tmp_path: Path) -> None:
    [finding] = files.all_files(tmp_path / "none")
    assert (finding.name, finding.status) == ("directory", "fail")
    [finding] = files.all_files(Path("/proc"))
    assert (finding.name, finding.status) == ("directory", "fail")
    assert files.check_space(tmp_path, free=1 << 20).status == "warn"


def test_a_file_system_that_refuses_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    found = {finding.name: finding for finding in files.all_files(tmp_path)}
    assert found["symbolic links"].status == "fail"
    assert "Operation not permitted" in found["symbolic links"].what
    assert found["atomic rename"].status == "ok"
    assert os.listdir(tmp_path) == []


def test_locks_that_lock_nothing_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TRY_LOCK", "")
    assert files.check_locks(tmp_path).status == "warn"


def test_lines_and_verdict() -> None:
    ok, warn, fail = Finding("a", "ok", "1"), Finding("b", "warn", "2", "do b"), Finding("c", "fail", "3", "do c")
    assert len(lines(ok)) == 1
    assert lines(fail)[1].strip() == "-> do c"
    assert "everything" in verdict([ok])
    assert "look at: b" in verdict([ok, warn])
    assert "until this is mended: c" in verdict([ok, warn, fail])


@pytest.mark.slow
def test_the_command_ends_with_1_on_a_failure(tmp_path: Path) -> None:
    good = CliRunner().invoke(cli, ["doctor", "--dir", str(tmp_path), "--json"])
    findings = json.loads(good.stdout)
    assert {"python", "torch", "TransferQueue", "import of torch", "Slurm", "ports", "locks"} <= {f["name"] for f in findings}
    assert good.exit_code == int(any(finding["status"] == "fail" for finding in findings))
    bad = CliRunner().invoke(cli, ["doctor", "--dir", str(tmp_path / "none")])
    assert bad.exit_code == 1
    assert "fail  directory" in bad.output
    assert "will not work here" in bad.output
