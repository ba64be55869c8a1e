"""What can go wrong with a durable run: refused, found, or mended, and said in clear words."""

import fcntl
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hdgemm.blas.products import multiply
from hdgemm.cli.app import app
from hdgemm.durable.audit import audit
from hdgemm.durable.earlier_run import DamagedError
from hdgemm.durable.journal import Journal
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.options import Options
from tests.counting import nth_call
from tests.durable.durable_case import TILE, Case, shared_case

DATA = {"new": 4096, "over": 128, "replace": 4096, "update": 128}


#: Times to the microsecond, in words that a reader knows.
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}\.[0-9]{6} UTC"
TIMES = f"was {_TIME}, is {_TIME};"


def stored(case):
    """The file that C lies in while the run is not finished."""
    return case.path("C") if case.mode in ("over", "update") else case.folder / case.leftovers()[0]


def first_tile_byte(case, byte=5):
    """A byte of C's first tile, in the file that C lies in."""
    return DATA[case.mode] + byte


def flip(path, offset, bit):
    with path.open("r+b") as stream:
        stream.seek(offset)
        [byte] = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ (1 << bit)]))


class TestRefusals:
    def test_another_alpha(self, tmp_path):
        case = Case(tmp_path)
        case.run_until(9)
        with pytest.raises(InputError, match=r"alpha was 1\.5, is 2\.0.*--restart"):
            case.run(alpha=2.0)
        case.run(alpha=2.0, restart=True)
        assert case.sha() != case.expected
        assert case.leftovers() == []

    @pytest.mark.parametrize("name", ["A", "B"])
    def test_an_input_that_changed(self, tmp_path, name):
        case = Case(tmp_path)
        case.run_until(9)
        flip(case.path(name), case.path(name).stat().st_size - 3, 2)
        with pytest.raises(InputError, match=f"{name} has changed: when it was changed {TIMES}"):
            case.run()

    def test_an_input_with_its_old_mtime_and_another_content(self, tmp_path):
        case = Case(tmp_path)
        case.run_until(9)
        status = case.path("A").stat()
        flip(case.path("A"), status.st_size - 3, 2)
        os.utime(case.path("A"), ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(InputError, match="A has changed: its content"):
            case.run()

    def test_content_that_changes_during_the_run_behind_an_old_mtime(self, tmp_path):
        case = Case(tmp_path)
        a = case.path("A")
        status = a.stat()

        def change(event):
            if event.stage == "store2" and event.number == 9:
                flip(a, status.st_size - 3, 2)
                os.utime(a, ns=(status.st_atime_ns, status.st_mtime_ns))

        with pytest.raises(MatrixIOError, match=r"A .* its time of modification set back"):
            case.run(observer=change)
        assert not case.path("C").exists()
        case.run(restart=True)
        assert case.path("C").exists()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"tile": (30, 48, 64)}, "the tile was"),
            ({"strategy": "initial"}, "the strategy was data-placement, is initial"),
            ({"host_memory": 100_000}, "bytes of host memory, allowed are now 100000"),
            ({"devices": "opencl:0"}, "the device was host, is opencl:0"),
        ],
    )
    def test_a_plan_that_cannot_be_matched(self, tmp_path, change, words):
        case = Case(tmp_path)
        case.run_until(9)
        with pytest.raises(InputError, match=words):
            case.run(options=Options(**{"tile": TILE, "devices": "host"} | change))
        # The tile need not be asked for again.
        assert case.run(options=Options()).resumption.kept >= 9
        assert case.sha() == case.expected

    def test_a_finished_c_that_changed(self, tmp_path):
        case = Case(tmp_path)
        case.run()
        flip(case.path("C"), 5000, 1)
        with pytest.raises(InputError, match="finished, but is no longer what the run left"):
            case.run()
        case.run(restart=True)
        assert case.sha() == case.expected

    def test_a_draft_that_is_gone(self, tmp_path):
        case = Case(tmp_path)
        case.run_until(9)
        stored(case).unlink()
        with pytest.raises(InputError, match="is gone"):
            case.run()
        case.run(restart=True)
        assert case.sha() == case.expected

    def test_a_half_updated_c(self, tmp_path):
        case = Case(tmp_path, "update")
        case.run_until(9)
        with pytest.raises(InputError, match="half updated"):
            case.run(restart=True)
        with pytest.raises(InputError, match="half updated"):
            case.run(checkpoint=False)
        shutil.copy(case.path("C0"), case.path("C"))
        case.run(restart=True)
        assert case.sha() == case.expected

    def test_two_runs_at_once(self, tmp_path):
        case = Case(tmp_path)
        with Journal(case.journal), pytest.raises(InputError, match="another run is at work"):
            case.run()
        case.run()

    def test_a_descriptor_in_a_forked_child_does_not_keep_a_closed_journal(self, tmp_path):
        path = tmp_path / "journal"
        with Journal(path) as journal:
            journal.append([{"begun": 1}])
            opened = [fd for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
            held = next(fd for fd in opened if fd.samefile(path))
            inherited = os.dup(int(held.name))  # shares the lock, as a child's descriptor does
        try:
            Journal(path).close()
        finally:
            os.close(inherited)

    def test_records_that_are_added_together_are_torn_together(self, tmp_path):
        path, block = tmp_path / "journal", 4096
        records = [{"done": number} for number in range(1000)]
        with Journal(path) as journal:
            journal.append([{"begun": 1}])
            journal.append(records)
        content = path.read_bytes()
        # Blocks that were written together may reach the disk in any order.
        path.write_bytes(content[:block] + bytes(block) + content[2 * block :])
        with Journal(path) as journal:
            assert journal.records == [{"begun": 1}]
            assert journal.damaged == []
            journal.append(records)
        with Journal(path) as journal:
            assert journal.records == [{"begun": 1}, *records]

    def test_a_journal_that_is_removed_before_it_is_locked(self, tmp_path, monkeypatch):
        path = tmp_path / "journal"
        ending, lock = Journal(path), fcntl.flock

        def late(fd, operation):
            monkeypatch.setattr(fcntl, "flock", lock)
            ending.close()  # which removes the journal, since it has no records
            lock(fd, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        with Journal(path) as journal:
            journal.append([{"begun": 1}])
            with pytest.raises(InputError, match="another run is at work"):
                Journal(path)
        with Journal(path) as journal:
            assert journal.records == [{"begun": 1}]

    def test_what_has_no_file_or_no_product(self, tmp_path):
        case = Case(tmp_path)
        with pytest.raises(InputError, match="checkpoint needs a C on disk"):
            multiply(case.path("A"), case.path("B"), out=np.empty((300, 280)), checkpoint=True)
        with pytest.raises(InputError, match="checkpoint is for products"):
            case.run(alpha=0.0)
        assert not case.journal.exists()

    def test_a_restart_without_a_journal(self, tmp_path):
        with pytest.raises(InputError, match="restart goes with checkpoint"):
            Case(tmp_path).run(checkpoint=False, restart=True)

    @pytest.mark.parametrize(
        "record",
        [
            {"begin": {"format": 999}},
            {"begin": {"format": 1, "run": "x", "plan": None}},
            {"factor": {"format": 1, "run": "x"}},
            {"rows": {"plan": {}}},
        ],
    )
    def test_what_is_no_journal(self, tmp_path, record):
        case = Case(tmp_path)
        with Journal(case.journal) as journal:
            journal.append([record])
        with pytest.raises(InputError, match="no journal of format 4"):
            case.run()
        case.run(restart=True)
        assert case.sha() == case.expected

    @pytest.mark.parametrize("restart", [False, True])
    @pytest.mark.parametrize("name", ["A.npy", "notes", "zeros", "fifo", "C.npy", "/dev/null"])
    def test_a_checkpoint_that_is_another_file(self, tmp_path, name, restart):
        case = Case(tmp_path)
        contents = {"notes": b"deadbeef\nnotes\n", "zeros": bytes(5000)}
        for other, content in contents.items():
            (tmp_path / other).write_bytes(content)
        os.mkfifo(tmp_path / "fifo")
        before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        with pytest.raises(InputError, match=r"is no journal|not a regular file|is C itself"):
            case.run(checkpoint=tmp_path / name, restart=restart)
        after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        assert after == before

    def test_a_journal_whose_first_record_is_torn(self, tmp_path):
        case = Case(tmp_path)
        for torn in (b"", b"12ab", b"12ab34cd", b'12ab34cd {"begin": {', bytes(5000)):
            case.journal.write_bytes(torn)
            assert case.run().resumption.kept == 0
            assert case.sha() == case.expected
            case.reset()


class TestDamage:
    @pytest.mark.parametrize("bit", range(0, 64, 16))
    def test_a_flipped_bit_is_found_and_its_tile_computed_again(self, tmp_path_factory, bit):
        case = shared_case(tmp_path_factory, ("new", "over", "replace")[bit % 3])
        case.run_until(9)
        flip(stored(case), first_tile_byte(case, bit // 8), bit % 8)
        report = case.run()
        assert report.resumption.damaged == 1
        assert case.sha() == case.expected

    def test_each_bit_of_an_element_is_checked(self, tmp_path_factory):
        case = shared_case(tmp_path_factory, "over")
        case.run()
        for bit in range(64):
            place = first_tile_byte(case, bit // 8), bit % 8
            flip(case.path("C"), *place)
            assert audit(case.path("C")).damaged == ((0, 0, 40, 48),)
            flip(case.path("C"), *place)
        assert audit(case.path("C")).passed

    @pytest.mark.parametrize("bit", range(0, 64, 21))
    def test_an_updated_tile_that_was_damaged_is_named(self, tmp_path_factory, bit):
        case = shared_case(tmp_path_factory, "update")
        case.run_until(30)
        flip(case.path("C"), first_tile_byte(case, bit // 8), bit % 8)
        with pytest.raises(DamagedError, match="rows 0 to 39, columns 0 to 47") as caught:
            case.run()
        assert caught.value.rect == (0, 0, 40, 48)

    def test_an_old_tile_that_was_changed_is_named(self, tmp_path):
        case = Case(tmp_path, "update")
        case.run_until(9)
        flip(case.path("C"), case.path("C").stat().st_size - 280 * 8 * 19 - 100, 3)
        with pytest.raises(DamagedError, match="by something else than the run"):
            case.run()

    def test_a_torn_journal_loses_its_last_line_at_most(self, tmp_path):
        case = Case(tmp_path)
        case.run_until(20)
        content = case.journal.read_bytes()
        case.journal.write_bytes(content[:-7])
        report = case.run()
        # A line has the pieces that became durable together, here two at most.
        assert report.resumption.kept >= 18
        assert case.sha() == case.expected

    def test_a_journal_damaged_in_its_middle(self, tmp_path):
        case = Case(tmp_path)
        case.run_until(20)
        flip(case.journal, case.journal.stat().st_size - 300, 0)
        case.run()
        assert case.sha() == case.expected

    def test_a_damaged_journal_of_an_update_is_refused(self, tmp_path):
        case = Case(tmp_path, "update")
        case.run_until(20)
        flip(case.journal, case.journal.stat().st_size - 300, 0)
        with pytest.raises(DamagedError, match="is damaged in lines"):
            case.run()

    def test_a_piece_that_is_recorded_and_not_stored_is_in_the_redo_log(
        self, tmp_path, monkeypatch
    ):
        case, write, ninth = Case(tmp_path, "update"), FileMatrix.write, nth_call(9)

        def tear(matrix, row, col, tile):
            if ninth():
                write(matrix, row, col, tile[: len(tile) // 2])
                raise MatrixIOError("torn", path="C.npy", offset=0, length=0)
            write(matrix, row, col, tile)

        with monkeypatch.context() as patch:
            patch.setattr(FileMatrix, "write", tear)
            with pytest.raises(MatrixIOError, match="torn"):
                case.run()
        # Without the log the half of a piece could not be computed again.
        assert case.run().resumption.kept == 9
        assert case.sha() == case.expected


class TestAudit:
    @pytest.mark.parametrize("mode", ["new", "over", "replace", "update"])
    def test_a_finished_c(self, tmp_path, mode):
        case = Case(tmp_path, mode)
        assert audit(case.path("C0")) is None
        case.run()
        found = audit(case.path("C"))
        assert found.passed
        assert found.pieces == 48
        flip(case.path("C"), first_tile_byte(case), 0)
        found = audit(case.path("C"))
        assert found.damaged == ((0, 0, 40, 48),)
        assert "1 of 48 stored pieces differ" in str(found)
        assert "rows 0 to 39, columns 0 to 47" in str(found)

    def test_a_column_major_c(self, tmp_path):
        case = Case(tmp_path, "update", order="F")
        case.run()
        assert audit(case.path("C")).passed

    def test_the_journal_of_another_matrix(self, tmp_path):
        case = Case(tmp_path)
        case.run()
        with pytest.raises(InputError, match="another matrix"):
            audit(case.path("A"), case.journal)

    def test_verify_reads_the_journal(self, tmp_path):
        case = Case(tmp_path)
        case.run(alpha=1.0)
        files = [str(case.path(name)) for name in "ABC"]
        result = CliRunner().invoke(app, ["verify", *files])
        assert result.exit_code == 0
        assert "all 48 stored pieces are as" in result.output
        # The last bit of an element: far below what any check of the product can see.
        flip(case.path("C"), 4096, 0)
        result = CliRunner().invoke(app, ["verify", *files])
        assert result.exit_code == 1
        assert "1 of 48 stored pieces differ" in result.output
