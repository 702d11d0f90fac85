import json
import resource
import subprocess
import sys
from importlib.util import find_spec

import click
import pytest
from click.testing import CliRunner

import hpcrl
from hpcrl.cli import main as main_module
from hpcrl.cli.main import COMMANDS, cli, main
from hpcrl.run.errors import CheckFailed, DeadlineExceeded

HEAVY = ("torch", "transformers", "mlflow", "transfer_queue", "numpy", "rich", "matplotlib", "sqlalchemy")
MODULES = """
import json, sys
from hpcrl.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="hpcrl")
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def hpcrl_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hpcrl.cli.main", *arguments], capture_output=True, text=True, check=False)


def modules_after(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", MODULES, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_lists_every_command_and_imports_none() -> None:
    done = hpcrl_process("--help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()] == list(COMMANDS)
    loaded = modules_after("--help")
    assert not {module for module, _ in COMMANDS.values()} & loaded
    assert not {name for name in HEAVY if name in loaded}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    if find_spec(COMMANDS[name][0]) is None:
        pytest.skip(f"{COMMANDS[name][0]} is not there")
    loaded = modules_after(name, "--help")
    assert COMMANDS[name][0] in loaded
    assert not {heavy for heavy in HEAVY if heavy in loaded}


def test_help_is_quick() -> None:
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        hpcrl_process("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # The best run, and of the processor's time: other work on the machine makes it slower.
    assert min(seconds) < 0.3, seconds


def test_version() -> None:
    assert hpcrl_process("--version").stdout == f"hpcrl, version {hpcrl.__version__}\n"


def test_an_unknown_command_lists_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["sttaus"])
    assert result.exit_code == 2
    assert "no command 'sttaus'; nearest: status" in result.output


def test_an_unknown_option_is_clicks_error() -> None:
    result = CliRunner().invoke(cli, ["--nope"])
    assert result.exit_code == 2
    assert "No such option" in result.output


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CheckFailed(["no model at /x", "no GPU"]), 2, "hpcrl: 2 problems"),
        (DeadlineExceeded("waited 3 s for rows"), 1, "hpcrl: waited 3 s for rows"),
    ],
)
def test_errors_become_messages_and_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, text: str
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main_module, "cli", failing)
    monkeypatch.setattr(sys, "argv", ["hpcrl"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(text)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main_module, "cli", failing)
    monkeypatch.setattr(sys, "argv", ["hpcrl"])
    with pytest.raises(ZeroDivisionError):
        main()


def test_a_bad_run_directory_ends_with_2_and_no_traceback(tmp_path: object) -> None:
    done = hpcrl_process("status", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("hpcrl: 1 problem")
    assert "Traceback" not in done.stderr
