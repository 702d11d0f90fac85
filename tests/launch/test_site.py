from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcrl.cli.site import command
from hpcrl.launch.duration import minutes_of
from hpcrl.launch.shell import expand
from hpcrl.launch.site import PACKAGED, Site, find_site, known_sites, load_site
from hpcrl.run.errors import CheckFailed


def write(folder: Path, text: str, name: str = "here") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(CheckFailed) as error:
        load_site(write(tmp_path, text))
    return list(error.value.problems)


@pytest.mark.parametrize("path", sorted(PACKAGED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_profiles_are_sound_and_round_trip(path):
    site = load_site(path)
    assert site.name == path.stem
    assert Site.from_json(site.to_json()) == site


def test_there_are_profiles():
    assert {"local-cluster", "example-pyxis", "example-apptainer", "example-modules"} <= known_sites({}).keys()


def test_all_that_is_wrong_comes_at_once_with_file_and_key(tmp_path):
    found = problems(
        tmp_path,
        'partiton = "x"\nexclusive = "yes"\nmodules = "cuda"\n[node]\ngpus = 1.5\nmemory_gib = 3\n'
        '[container]\nkind = "docker"\n',
    )
    text = "\n".join(found)
    assert len(found) == 5
    assert all(problem.startswith(f"{tmp_path / 'here.toml'}: ") for problem in found)
    assert "partiton: there is no such key; nearest: partition" in text
    assert "exclusive: it must be true or false and is 'yes'" in text
    assert "modules: it must be a list of texts" in text
    assert "node.gpus: it must be a whole number and is 1.5" in text
    assert "container.kind: it must be one of none, pyxis, apptainer and is 'docker'" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('partition = "a\\n#SBATCH --uid=0"', "partition: 'a\\n#SBATCH --uid=0' holds a line break"),
        ('modules = ["a\\u2028b"]', "modules[0]: "),
        ('[environment]\nA = "x\\ny"', "environment.A: 'x\\ny' holds a line break"),
        ('sbatch = ["#SBATCH --uid=0"]', "without #SBATCH"),
        ('sbatch = ["--a=1 --b"]', ""),
        ('sbatch = ["--array=0-3"]', "no arrays of heterogeneous jobs"),
        ('sbatch = ["--no-kill"]', "hpcrl sets --no-kill itself"),
        ('sbatch = ["-N 3"]', "must be one option"),
        ('account = "a b"', "is no Slurm name"),
        ('partition = "--x"', "is no partition"),
        ('gres = "fpga"', "must be gpu or gpu:TYPE"),
        ('time = "soon"', "is no time limit"),
        ('scratch = "here"', "must be an absolute path"),
        ('[environment]\n"A-B" = "x"', "no name of a variable"),
        ('[environment]\nSLURM_EXACT = "1"', "the scheduler's own"),
        ('[environment]\nPYTHONPATH = "/x"', "hpcrl sets it"),
        ('[container]\nkind = "pyxis"', "pyxis needs one"),
        ('[container]\nimage = "x"', "say pyxis or apptainer"),
        ('[container]\nkind = "pyxis"\nimage = "x"\nmounts = ["/a:/b,/c:/d"]', "without commas"),
        ("[node]\ncpus = -1", "node.cpus: -1"),
        ("node = 3", "node: it must be a table"),
        ("=", "is not TOML"),
    ],
)
def test_what_would_reach_beyond_its_line_or_break_a_job_is_refused(tmp_path, text, says):
    if not says:
        assert load_site(write(tmp_path, text)).sbatch == ("--a=1 --b",)
        return
    assert says in "\n".join(problems(tmp_path, text))


def test_search_order(tmp_path):
    environ = {"HPCRL_SITES": f"{tmp_path / 'a'}:{tmp_path / 'b'}", "HOME": str(tmp_path / "home")}
    mine = tmp_path / "home" / ".config" / "hpcrl" / "sites"
    write(mine, 'partition = "mine"', "local-cluster")
    assert find_site("local-cluster", environ).partition == "mine"
    write(tmp_path / "b", 'partition = "b"', "local-cluster")
    assert find_site("local-cluster", environ).partition == "b"
    write(tmp_path / "a", 'partition = "a"', "local-cluster")
    assert find_site("local-cluster", environ).partition == "a"
    path = write(tmp_path / "b", 'partition = "path"', "other")
    assert find_site(str(path), environ).partition == "path"
    with pytest.raises(CheckFailed, match="nearest: local-cluster"):
        find_site("local-clustr", environ)
    with pytest.raises(CheckFailed, match=r"no profile default\.toml"):
        find_site(None, environ)
    write(mine, 'partition = "d"', "default")
    assert find_site(None, environ).partition == "d"
    with pytest.raises(CheckFailed, match="cannot be read"):
        find_site("./nowhere.toml", environ)


def test_the_command_shows_and_lists():
    listed = CliRunner().invoke(command, ["list"])
    assert str(PACKAGED / "local-cluster.toml") in listed.output
    shown = CliRunner().invoke(command, ["show", "local-cluster"])
    assert Site.from_json(shown.output).preemptible_partitions == ("low",)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("5", 5), ("5:01", 6), ("1:00:00", 60), ("2-3", 51 * 60), ("1-0:30", 24 * 60 + 30), ("1-00:00:01", 24 * 60 + 1)],
)
def test_time_limits(text, minutes):
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "1h", "-5", "1:2:3:4", "UNLIMITED"])
def test_what_is_no_time_limit(text):
    with pytest.raises(ValueError, match="no time limit"):
        minutes_of(text)


def test_variables_in_a_command():
    assert expand("/a/$USER/${X}b$$ $(x)", {"USER": "me"}) == "/a/me/b$$ $(x)"
