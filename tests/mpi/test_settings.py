"""HPL.dat as people have it, and values that are refused."""

import pytest

from hdgemm.errors import InputError
from hdgemm.mpi.linpack import Settings, read_dat
from hdgemm.mpi.linpack.settings import ignored_lines, parse_overlap
from hdgemm.mpi.variant import OVERLAPS, STRIP, parse_grid
from tests.cli.commands import command_line

DAT = """HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
6            device out (6=stdout,7=stderr,file)
2            # of problems sizes (N)
29 30        Ns
1            # of NBs
4            NBs
0            PMAP process mapping (0=Row-,1=Column-major)
2            # of process grids (P x Q)
2 1          Ps
2 4          Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
2            # of broadcast
0 3          BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
1            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
"""


def test_hpl_dat_gives_every_combination(tmp_path):
    path = tmp_path / "HPL.dat"
    path.write_text(DAT)
    runs = read_dat(path)
    assert len(runs) == 8
    assert runs[0] == Settings(29, 4, (2, 2), broadcast="1ring", swap="long")
    assert runs[-1] == Settings(30, 4, (1, 4), broadcast="2ring-modified", swap="long")


def test_lines_without_effect_are_listed(tmp_path):
    path = tmp_path / "HPL.dat"
    path.write_text(DAT + "\n##### the rest is of another program\n")
    ignored = ignored_lines(path)
    numbers = [int(line.split()[1].rstrip(":")) for line in ignored]
    assert numbers == [3, 4, *range(14, 22), *range(27, 32), 33]
    assert ignored[2:4] == [
        "line 14: 1 # of panel fact",
        "line 15: 2 PFACTs (0=left, 1=Crout, 2=Right)",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("29 30 ", "29 x ", r"line 6: expected 2 whole numbers, got '29 x'"),
        ("29 30 ", "29.5 30 ", r"line 6: expected 2 whole numbers, got '29.5 30'"),
        ("29 30 ", "nan 30 ", "line 6: expected 2 whole numbers"),
        ("2            # of problems", "0            # of problems", "line 5: expected at least 1"),
        ("2            # of process", "-1           # of process", "line 10: expected at least 1"),
        ("16.0 ", "-16.0 ", "threshold must be above 0"),
        ("16.0 ", "nan ", "threshold must be above 0"),
        ("0            PMAP", "2            PMAP", "PMAP 2 is not available"),
        ("0 3  ", "0 6  ", "BCAST 6 is not available"),
        ("1            SWAP", "7            SWAP", "SWAP 7"),
        ("29 30 ", "0 30 ", "at least 1"),
    ],
)
def test_a_wrong_value_names_its_line(tmp_path, old, new, message):
    path = tmp_path / "HPL.dat"
    path.write_text(DAT.replace(old, new))
    with pytest.raises(InputError, match=message):
        read_dat(path)


def test_a_file_cut_short_or_missing_is_refused(tmp_path):
    path = tmp_path / "HPL.dat"
    with pytest.raises(InputError, match="cannot be read"):
        read_dat(path)
    path.write_text("\n".join(DAT.splitlines()[:9]))
    with pytest.raises(InputError, match="ends before line 10"):
        read_dat(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0},
        {"nb": 0},
        {"grid": (0, 1)},
        {"depth": -1},
        {"overlap": ("all",)},
        {"strip": 0},
        {"mapping": "diagonal"},
        {"broadcast": "tree"},
        {"swap": "mix"},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(InputError):
        Settings(**{"n": 10, **wrong})


def test_hpl_dat_of_a_column_major_grid_with_lookahead_and_long_broadcasts(tmp_path):
    path = tmp_path / "HPL.dat"
    changes = {"0            PMAP": "1 PMAP", "0 3  ": "4 5  ", "1            DEPTHs": "2 DEPTHs"}
    text = DAT
    for old, new in changes.items():
        text = text.replace(old, new)
    path.write_text(text)
    runs = read_dat(path)
    assert {run.broadcast for run in runs} == {"long", "long-modified"}
    assert {(run.mapping, run.depth) for run in runs} == {("column", 2)}
    assert runs[0].code == "WC24R2R8"
    assert [runs[0].place(rank) for rank in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_overlaps_are_joined_by_plus_signs():
    assert parse_overlap("none") == ()
    assert parse_overlap("all") == OVERLAPS
    assert parse_overlap("window+split-swap") == ("window", "split-swap")


@pytest.mark.parametrize("text", ["", "2", "2x", "axb", "2x2x2"])
def test_a_grid_is_two_numbers(text):
    with pytest.raises(InputError, match="PxQ"):
        parse_grid(text)
    assert parse_grid("2x3") == (2, 3)


def test_the_help_names_the_width_of_a_strip(monkeypatch, capsys):
    done = command_line(monkeypatch, capsys)("linpack", "--help")
    described = " ".join(done.stdout.partition("--strip")[2].split())
    assert f"Default: {STRIP}; all columns where each process has one core or device" in described
    # All columns only where no process forwards panels: two columns of the grid at most.
    assert [Settings(5000, grid=(1, q)).widest_strip(1, 5001) for q in (1, 2, 3)] == [
        5001,
        5001,
        STRIP,
    ]
