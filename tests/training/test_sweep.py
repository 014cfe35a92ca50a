"""A sweep loses no finished run and repeats none, wherever it is killed; errors and divergences do not stop it."""

import errno
import json
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker

import psutil
import pytest
from filelock import FileLock

from testbed.core.errors import InputError
from testbed.training import sweep as sweep_module
from testbed.training.results_file import read_results, thinned, write_results
from testbed.training.sweep import pending, record_path, records, sweep
from tests.training.sweep_worlds import STUDY, failing, quick, record, swept


def results(out):
    """Bytes of the `result` part of every record."""
    return {p.name: json.dumps(json.loads(p.read_text())["result"]) for p in sorted(out.glob("*.json"))}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "whole"
    done = sweep(STUDY, out, quick, jobs=1)
    assert (done.found, done.ran, done.failed) == (0, 24, {})
    return results(out)


def test_every_cell_has_one_record_of_its_own(uninterrupted):
    assert len(uninterrupted) == 24 == len({cell.id for cell in STUDY.cells()})
    assert {name.removesuffix(".json") for name in uninterrupted} == {cell.id for cell in STUDY.cells()}


def killed(out, jobs, waits):
    """Sweep in processes that are killed, and note when each record was written; a record must never be written again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.sweep_worlds", "torch"])  # so that a process starts at once
    written: dict[str, int] = {}
    kills = 0
    for wait in waits:
        run = context.Process(target=swept, args=(str(out), "loky", jobs))
        run.start()
        before, deadline = len(written), time.monotonic() + 100
        while len(list(out.glob("*.json"))) <= before and run.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)  # killed before it has written anything, it has nothing to lose
        time.sleep(wait)
        kills += run.is_alive()
        run.kill()
        run.join()
        for path in out.glob("*.json"):
            changed = path.stat().st_mtime_ns
            assert written.setdefault(path.name, changed) == changed, "a finished cell was run again"
    return written, kills


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_ten_moments_it_loses_nothing_and_repeats_nothing(jobs, uninterrupted, tmp_path, rng):
    out = tmp_path / "records"
    written, kills = killed(out, jobs, rng.uniform(0.0, 0.09, 10))
    assert kills == 10 <= len(written) < 24
    sweep(STUDY, out, quick, jobs=1, resume=True)
    assert results(out) == uninterrupted
    for name, changed in written.items():
        assert (out / name).stat().st_mtime_ns == changed


def test_a_worker_that_outlives_its_sweep_is_waited_for(tmp_path):
    cell = STUDY.cells()[0]
    (tmp_path / ".locks").mkdir()
    left_behind = FileLock(tmp_path / ".locks" / f"{cell.id}.lock")
    with ThreadPoolExecutor() as pool, left_behind:
        second = pool.submit(sweep_module.run_cell, cell, failing_if_asked, str(tmp_path))
        with pytest.raises(TimeoutError):
            second.result(timeout=0.3)
        record_path(tmp_path, cell).write_text(json.dumps(record(cell)))
        left_behind.release()
        assert second.result(timeout=60) == (cell.id, "")
    assert not record_path(tmp_path, cell).with_suffix(".failed.txt").exists()


def failing_if_asked(cell):
    raise AssertionError(f"{cell.id} was run twice")


def test_a_record_cut_short_is_made_again(uninterrupted, tmp_path):
    sweep(STUDY, tmp_path, quick, jobs=1)
    first = record_path(tmp_path, STUDY.cells()[0])
    first.write_text(first.read_text()[:40])
    assert [cell.id for cell in pending(STUDY, tmp_path)] == [STUDY.cells()[0].id]
    assert sweep(STUDY, tmp_path, quick, jobs=1, resume=True).ran == 1
    assert results(tmp_path) == uninterrupted


@pytest.mark.parametrize("kind", ["another program's", "without curves", "of another cell", "no provenance"])
def test_a_file_that_is_no_record_of_its_cell_is_made_again(kind, uninterrupted, tmp_path):
    first, other = (record_path(tmp_path, cell) for cell in STUDY.cells()[:2])
    sweep(STUDY, tmp_path, quick, jobs=1)
    content = json.loads((other if kind == "of another cell" else first).read_text())
    if kind == "another program's":
        content = {"result": {"outcome": "finished"}, "provenance": {}}
    elif kind == "without curves":
        del content["result"]["curve"]
    elif kind == "no provenance":
        content["provenance"] = None
    first.write_text(json.dumps(content))
    with pytest.raises(InputError, match="1 missing"):
        records(STUDY, tmp_path)
    assert [cell.id for cell in pending(STUDY, tmp_path)] == [first.stem]
    assert sweep(STUDY, tmp_path, quick, jobs=1, resume=True).ran == 1
    assert results(tmp_path) == uninterrupted


def test_records_are_not_gone_on_with_unasked(tmp_path):
    sweep(STUDY, tmp_path, quick, jobs=1)
    with pytest.raises(InputError, match=r"24 in .*--resume"):
        sweep(STUDY, tmp_path, quick, jobs=1)


def test_a_cell_that_fails_is_noted_and_tried_again(uninterrupted, tmp_path):
    done = sweep(STUDY, tmp_path, failing, jobs=2)
    assert done.ran == 22 and len(done.failed) == 2
    assert set(done.failed.values()) == {"ZeroDivisionError: no such thing"}
    assert len(list(tmp_path.glob("*.failed.txt"))) == 2
    with pytest.raises(InputError, match="2 missing"):
        records(STUDY, tmp_path)
    assert sweep(STUDY, tmp_path, quick, jobs=1, resume=True).ran == 2
    assert results(tmp_path) == uninterrupted and not list(tmp_path.glob("*.failed.txt"))


def test_a_record_that_cannot_be_written_stops_no_other_cell(uninterrupted, tmp_path, monkeypatch):
    folder, full, unnoted = STUDY.cells()[:3]
    record_path(tmp_path, folder).mkdir()
    record_path(tmp_path, unnoted).with_suffix(".failed.txt").mkdir()
    right = sweep_module.write_json_atomic

    def write(path, content):
        if path.stem in (full.id, unnoted.id):
            raise OSError(errno.ENOSPC, "No space left on device")
        return right(path, content)

    monkeypatch.setattr(sweep_module, "write_json_atomic", write)
    done = sweep(STUDY, tmp_path, quick, jobs=1)
    assert done.ran == 21 and set(done.failed) == {folder.id, full.id, unnoted.id}
    assert "a folder" in done.failed[folder.id] and done.failed[full.id].endswith("No space left on device")
    noted = {path.name for path in tmp_path.glob("*.failed.txt") if path.is_file()}
    assert noted == {f"{cell.id}.failed.txt" for cell in (folder, full)}
    monkeypatch.setattr(sweep_module, "write_json_atomic", right)
    record_path(tmp_path, folder).rmdir()
    assert sweep(STUDY, tmp_path, quick, jobs=1, resume=True).failed == {} and results(tmp_path) == uninterrupted


def test_a_lock_that_cannot_be_made_stops_no_other_cell(tmp_path):
    first = STUDY.cells()[0]
    (tmp_path / ".locks" / f"{first.id}.lock").mkdir(parents=True)
    done = sweep(STUDY, tmp_path, quick, jobs=1)
    assert done.ran == 23 and set(done.failed) == {first.id}


def test_a_result_that_could_not_be_gathered_is_an_error_of_its_cell(tmp_path):
    done = sweep(STUDY, tmp_path, lambda cell: {"outcome": "finished"}, jobs=1)
    assert done.ran == 0 and not list(tmp_path.glob("*.json"))
    assert all("evaluations, curve" in error for error in done.failed.values())


@pytest.mark.parametrize("place", ["afile", "afile/records", "/proc/records", "locked"])
def test_a_folder_that_cannot_be_written_is_refused(place, tmp_path):
    (tmp_path / "afile").touch()
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / ".locks").touch()
    with pytest.raises(InputError, match="records need a folder that can be written"):
        sweep(STUDY, tmp_path / place, lambda cell: pytest.fail("a cell was run"), jobs=1)


def test_wall_time_and_versions_are_no_part_of_the_result(tmp_path):
    sweep(STUDY, tmp_path, quick, jobs=1)
    content = json.loads(record_path(tmp_path, STUDY.cells()[0]).read_text())
    assert set(content) == {"result", "provenance"}
    assert {"seconds", "platform", "git"} <= set(content["provenance"]) and "seconds" not in content["result"]


def test_the_number_of_workers_and_the_backend_change_nothing(uninterrupted, tmp_path):
    sweep(STUDY, tmp_path / "two", quick, jobs=2)
    assert results(tmp_path / "two") == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_of_this_machine_gives_the_same_records(backend, uninterrupted, tmp_path, capfd):
    resource_tracker.ensure_running()  # it stays, once it is there
    before, seen = set(psutil.Process().children(recursive=True)), []
    done = sweep(STUDY, tmp_path, quick, jobs=2, backend=backend, progress=lambda *counts: seen.append(counts))
    assert done.ran == 24 and results(tmp_path) == uninterrupted
    assert capfd.readouterr() == ("", "")  # no warning, no advice
    assert set(psutil.Process().children(recursive=True)) <= before
    times = [seconds for _, _, seconds in seen[1:]]
    assert len(seen) == 25 and times[-1] - times[0] > 0.3  # told as they finish: 24 cells of 0.05 s on two workers


def test_progress_counts_what_was_there(tmp_path):
    sweep(STUDY, tmp_path, quick, jobs=1)
    for cell in STUDY.cells()[:5]:
        record_path(tmp_path, cell).unlink()
    seen = []
    sweep(STUDY, tmp_path, quick, jobs=1, resume=True, progress=lambda done, total, _: seen.append((done, total)))
    assert seen == [(done, 24) for done in range(19, 25)]


def test_bad_backends_are_refused(tmp_path):
    with pytest.raises(InputError, match="loky, dask, ray; found 'mpi'"):
        sweep(STUDY, tmp_path, quick, backend="mpi")
    with pytest.raises(InputError, match="jobs"):
        sweep(STUDY, tmp_path, quick, jobs=0)


def test_a_results_file_holds_every_run(tmp_path, monkeypatch):
    sweep(STUDY, tmp_path / "records", quick, jobs=1)
    path = write_results(STUDY, iter(records(STUDY, tmp_path / "records")), tmp_path / "quick.parquet")
    about, rows = read_results(path)
    assert about["study"] == "quick" and about["seeds"] == 6 and len(rows) == 24
    assert rows[0]["factor_rule"] == "tis" and rows[0]["ages"] == [1, 1] and len(rows[0]["curve_reward"]) == 4
    assert {row["seed"] for row in rows} == set(range(6))
    nan = [row for row in rows if row["final"] != row["final"] or row["final"] in ("nan", None)]
    assert {(row["seed"], row["factor_rate"]) for row in nan} == {(3, "2")}
    with pytest.raises(InputError, match="results must be"):
        read_results(record_path(tmp_path / "records", STUDY.cells()[0]))


def test_curves_are_thinned_by_means_of_equal_stretches():
    assert thinned([0.0, 1.0, 2.0, "nan", "inf", 4.0], planned=6, points=3) == [0.5, 2.0, 4.0]


def test_peaks_are_of_the_whole_curve_and_medians_of_its_last_third(tmp_path):
    def spiky(cell):
        found = quick(cell)
        values = [0.0, 50.0, 1.0, 1.0, 7.0, 3.0, 2.0, 9.0]
        return found | {"curve": found["curve"] | {"grad_norm": values, "max_log_k": [*values[:7], "nan"]}}

    sweep(STUDY, tmp_path / "records", spiky, jobs=1)
    _, rows = read_results(write_results(STUDY, iter(records(STUDY, tmp_path / "records")), tmp_path / "quick.parquet"))
    assert {(row["peak_grad_norm"], row["late_grad_norm"], row["late_max_log_k"]) for row in rows} == {(50.0, 3.0, 2.5)}


def test_a_planted_repetition_is_noticed(uninterrupted, tmp_path, monkeypatch):
    """If finished cells were run again, the test above would see their records change."""
    sweep(STUDY, tmp_path, quick, jobs=1)
    before = record_path(tmp_path, STUDY.cells()[0]).stat().st_mtime_ns
    monkeypatch.setattr(sweep_module, "pending", lambda study, out: study.cells())
    sweep(STUDY, tmp_path, quick, jobs=1, resume=True)
    assert record_path(tmp_path, STUDY.cells()[0]).stat().st_mtime_ns == before  # the worker looks, too
    monkeypatch.setattr(sweep_module, "read_record", lambda path: None)
    sweep(STUDY, tmp_path, quick, jobs=1, resume=True)
    assert record_path(tmp_path, STUDY.cells()[0]).stat().st_mtime_ns != before
