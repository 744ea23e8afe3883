from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steptime.report.names import middle, shorten_all, visible
from tests.report.reports import ADD, BATCH_NORM


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name", "plain name"),
        ("日本 é µs", "日本 é µs"),
        ("\x1b[31m\x07\r\n\t", "\\x1b[31m\\x07\\r\\n\\t"),
        ("a\u202eb\u200bc\u2028d", "a\\u202eb\\u200bc\\u2028d"),
        ("\udcff", "\\udcff"),
        ("e" + "\u0301" * 9, "e\u0301\u0301"),
    ],
)
def test_what_does_not_print_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_name_that_fits_is_left_alone() -> None:
    assert shorten_all([ADD], 300) == {ADD: ADD}


def test_templates_go_before_the_name_does() -> None:
    short = shorten_all([BATCH_NORM, "volta_sgemm_128x64_nn"], 40)
    assert short == {
        BATCH_NORM: "cudnn::bn_bw_1C11_kernel_new<…>",
        "volta_sgemm_128x64_nn": "volta_sgemm_128x64_nn",
    }


def test_names_that_differ_deep_inside_show_where() -> None:
    half = ADD.replace("<float>", "<c10::Half>")
    short = shorten_all([ADD, half], 40)
    assert "float" in short[ADD]
    assert "Half" in short[half]


def test_names_equal_when_printed_are_numbered() -> None:
    # One holds an escape character, the other the four characters that it is written as.
    assert list(shorten_all(["a\x1b", "a\\x1b"], 40).values()) == ["a\\x1b [1]", "a\\x1b [2]"]


@given(
    names=st.lists(st.text(alphabet="ab<>(),: …[1]\x1b", max_size=60), unique=True, max_size=8),
    width=st.integers(16, 30),
)
@example(names=["a" * 40, "a" * 41, "a" * 16 + "…" + "a" * 3], width=20)
def test_short_names_fit_and_stay_distinct(names: list[str], width: int) -> None:
    short = shorten_all(names, width)
    assert list(short) == names
    assert len(set(short.values())) == len(names)
    assert all(len(text) <= width and text.isprintable() for text in short.values())


@pytest.mark.parametrize(("width", "text"), [(10, "0123456789"), (7, "0123…89"), (2, "0…"), (1, "…"), (0, "")])
def test_middle(width: int, text: str) -> None:
    assert middle("0123456789", width) == text
