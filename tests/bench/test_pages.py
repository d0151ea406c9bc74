"""Sections of a page that programs write."""

from __future__ import annotations

import os

import pytest

from fastrl.bench.pages import check_page, marks, replace_section, section_of
from fastrl.bench.report import Report, Table
from fastrl.errors import ConfigError


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.md"


def test_a_section_is_appended_and_then_replaced(page):
    page.write_text("# By hand\n\nText.\n")
    replace_section(page, "one", "first")
    replace_section(page, "two", "other")
    before = page.read_text()
    assert before.startswith("# By hand\n\nText.\n\n<!-- begin: one -->\n\nfirst\n\n<!-- end: one")
    page.write_text(before + "\nMore by hand.\n")
    replace_section(page, "one", "second\n")
    assert page.read_text() == before.replace("first", "second") + "\nMore by hand.\n"
    replace_section(page, "one", "first")
    assert page.read_text() == before + "\nMore by hand.\n"


def test_a_page_that_is_not_there_is_made(page):
    replace_section(page, "one", "text")
    begin, end = marks("one")
    assert page.read_text() == f"{begin}\n\ntext\n\n{end}\n"
    assert page.stat().st_mode & 0o777 == 0o644
    assert os.listdir(page.parent) == ["page.md"], "nothing is left beside it"


def test_names_that_begin_alike_are_two_sections(page):
    replace_section(page, "soak", "a")
    replace_section(page, "soak --profile pong", "b")
    replace_section(page, "soak", "c")
    assert "\n\nb\n\n" in page.read_text() and "\n\na\n\n" not in page.read_text()


@pytest.mark.parametrize("text", ["{begin}", "{end}\n{begin}", "{begin}{end}{begin}", "{end}"])
def test_marks_that_do_not_match_are_refused_and_nothing_is_lost(page, text):
    begin, end = marks("one")
    text = text.format(begin=begin, end=end)
    page.write_text(text)
    with pytest.raises(ConfigError, match="must have the marks"):
        replace_section(page, "one", "new")
    assert page.read_text() == text


def test_a_page_that_cannot_be_written_is_refused_before(tmp_path):
    check_page(None)
    check_page(tmp_path / "new.md")
    for path in (tmp_path, tmp_path / "nowhere" / "page.md"):
        with pytest.raises(ConfigError, match="--write"):
            check_page(path)


def test_the_section_has_what_one_needs_to_do_it_again():
    tables = [Table("Sent", ("who", "how often"), [("a|b", "3")])]
    report = Report("chaos", ["--seed", "7"], {"unit": "meaning"}, tables, {}, lambda axes: None)
    text = section_of(report, ["a note"])
    for words in ("`fastrl-bench chaos --seed 7`", report.machine["cpu"], "torch", "a note"):
        assert words in text
    assert "| who | how often |\n|---|--:|\n| a\\|b | 3 |" in text
