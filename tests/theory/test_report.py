"""The HTML report: every part is there, all text is escaped, nothing comes from a network, bad input is one sentence."""

from __future__ import annotations

import json
import re
import struct
import zlib
from html.parser import HTMLParser

import pytest

from testbed.core.command import run_command
from tests.theory.fabricated import HEADER, HOSTILE, verdict, write_run
from theory.cli import app

VOID = {"meta", "img", "br", "wbr", "mspace"}


class Page(HTMLParser):
    """What a browser would make of it: elements by id, addresses, and whether tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.addresses: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.addresses += [(tag, value) for name, value in attrs if name in ("href", "src", "action", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + b"\xff" * width for _ in range(height)))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory):
    from testbed.cli import app as testbed_app

    path = tmp_path_factory.mktemp("diagnosis") / "diagnosis.json"
    assert run_command(testbed_app, "testbed", ["diagnose", "sample", "--json", str(path)]) == 0
    return path


def report(folder, *more, found=None):
    out = folder / "report.html"
    verdicts = write_run(folder / "verdicts.json", found)
    status = run_command(app, "theory", ["report", "--verdicts", str(verdicts), "--out", str(out), *map(str, more)])
    return status, out.read_text() if out.exists() else ""


def test_every_part_is_there(tmp_path, diagnosis, capsys):
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "bias_readings.png").write_bytes(png(680, 4))
    (figures / "mutant_margins.png").write_bytes(png(1380, 4))
    status, text = report(tmp_path, "--diagnosis", diagnosis, "--figures", figures)
    assert status == 0
    page = Page(text)
    assert {"S2", "S4", "S99", "C1", "verdicts", "section-S", "section-C", "diagnosis", "reproduce"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert {value[1:] for tag, value in page.addresses if tag == "a"} <= set(page.ids)
    for words in (
        "3 of 4 theorems were decided as catalogued", "1 usual claim is refuted by a counterexample (S4)", "1 reports numbers",
        "2 of 3 mutants", "Not decided: S99", "Readings of SPIRE: four.", "full text was not available to us",
        HEADER["git"], "uncommitted changesyes", "the commit alone does not reproduce", "torch 2.9.0", "2026-01-02T03:04:05Z",
        "every behavior supports the target", "E\u03bc[WT R \u2211t st] = G", "This is a reading. The full text of SPIRE",
        "Every one of the 4 steps follows exactly at 5 random rational points", "because",
        "two_means", "0.1234568", "\u221e", "\u22120.25", "stale_start", "labels_shifted", "bug planted",
        "1595 draws; false-alarm rate 5 \u00d7 10\u22129, power 0.99", "What it means", "It works.",
        "1 not caught", "survived", "Token gaps", "Which reading of SPIRE applies", "smollm2_partial_rollouts.parquet",
        "theory break S2:labels_shifted", "This version of the program has no derivation under this id.", "First claim",
    ):  # fmt: skip
        assert words in page.text, words
    assert {"math", "details", "nav", "figure"} <= page.tags
    assert text.count("<img") == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith(str(tmp_path / "report.html"))


def test_nothing_a_record_says_becomes_markup(tmp_path):
    _, text = report(tmp_path)
    page = Page(text)
    assert "script" not in page.tags
    # title (twice), hypothesis, statement, source, problem, claim and its worst instance, mutant, outcome
    assert page.text.count(HOSTILE) == 10
    assert "<script" not in text


def test_it_needs_no_network_and_no_program(tmp_path, diagnosis):
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "bias_readings.png").write_bytes(png(680, 4))
    _, text = report(tmp_path, "--diagnosis", diagnosis, "--figures", figures)
    page = Page(text)
    assert all(value.startswith("#") for tag, value in page.addresses if tag == "a")
    assert all(value.startswith("data:image/png;base64,") for tag, value in page.addresses if tag != "a")
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "embed"})
    assert not re.search(r"@import|url\(|https?://", text)
    assert 'name="viewport"' in text
    assert "@media print" in text and "prefers-color-scheme: dark" in text


def test_figures_and_diagnosis_may_be_missing(tmp_path):
    status, text = report(tmp_path)
    assert status == 0
    page = Page(text)
    assert "figure" not in page.tags
    assert "diagnosis" not in page.ids


def test_equal_records_give_equal_pages(tmp_path):
    assert report(tmp_path)[1] == report(tmp_path)[1]


def test_an_interrupted_run_says_so(tmp_path):
    path = write_run(tmp_path / "verdicts.json", [verdict("S2", mutants=[])])
    content = json.loads(path.read_text())
    content["header"] |= {"complete": False, "dirty": False}
    path.write_text(json.dumps(content))
    assert run_command(app, "theory", ["report", "--verdicts", str(path), "--out", str(tmp_path / "r.html")]) == 0
    text = Page((tmp_path / "r.html").read_text()).text
    assert "interrupted" in text
    assert "The mutants were not run" in text
    assert "does not reproduce" not in text


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--verdicts", None, "must exist"), ("--verdicts", "{", "readable JSON"), ("--verdicts", "[]", "must hold a list"),
        ("--verdicts", '{"verdicts": [{"id": "S2", "mutants": [{"killed": true}]}]}', "must be records of"),
        ("--diagnosis", None, "must exist"), ("--diagnosis", "{", "readable JSON"), ("--diagnosis", "[]", "must be a record"),
        ("--diagnosis", "{}", "must be a record of"), ("--figures", None, "must name a folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(option, content, message, tmp_path, capsys):
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content)
    good = write_run(tmp_path / "verdicts.json", [verdict("S2")])
    out = tmp_path / "report.html"
    given = {"--verdicts": str(good), "--out": str(out)} | {option: str(bad)}
    assert run_command(app, "theory", ["report", *[word for pair in given.items() for word in pair]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_an_image_that_is_none_is_refused(tmp_path, capsys):
    (tmp_path / "mutant_margins.png").write_bytes(b"GIF89a")
    status, _ = report(tmp_path, "--figures", tmp_path)
    assert status == 2
    assert "must be a PNG image" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    verdicts = write_run(tmp_path / "verdicts.json", [verdict("S2")])
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "report.html")
    assert run_command(app, "theory", ["report", "--verdicts", str(verdicts), "--out", out]) == 2
    assert "`--out` must name a file" in capsys.readouterr().err
