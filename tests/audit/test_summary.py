"""The summary: its sentences state what was planted, and are as worried as the advice."""

import pytest

from audit.sample import content, row
from tinymp.audit import summary
from tinymp.audit.advice import RULES, SPOILS
from tinymp.audit.summary import FINE, LOOK, LOOK_FROM, NOTE, PROBLEM, findings, summarise

FORWARD = row("a", "linear", "forward", "DOT", rounded=100, infinite=3, caller="train.py:7")
BACKWARD = row("b", "linear", "backward", "DOT", rounded=1000, infinite=3, zero=20)


def advice(rule, importance=SPOILS):
    return {"rule": rule, "importance": importance}


def said(level, *given, **sections):
    return [f.text.replace("\xa0", " ") for f in findings({**sections, "advice": given}) if f.level == level]


def test_it_counts_what_it_was_not_told():
    ledger = [
        row("a", "linear", "forward", "DOT", rounded=100, zero=1, subnormal=20, infinite=0),
        row("b", "linear", "backward", "DOT", rounded=900, zero=2, subnormal=30, infinite=4),
    ]
    counted = summarise({"ledger": ledger, "scale": {"skipped": [3, 4]}})
    expected = {"iterations": None, "skipped": 2, "ops": 2, "roundings": 1000, "zero": 3, "subnormal": 50}
    assert counted == expected | {"infinite": 4}
    given = summarise({"ledger": ledger, "summary": {"iterations": 9, "zero": 7, "skipped": None}})
    assert (given["iterations"], given["zero"], given["skipped"], given["subnormal"]) == (9, 7, None, 50)


@pytest.mark.parametrize(
    ("importance", "level"),
    [(SPOILS, PROBLEM), (SPOILS - 1, LOOK), (LOOK_FROM, LOOK), (LOOK_FROM - 1, NOTE), (None, NOTE)],
)
def test_a_sentence_weighs_as_much_as_the_advice(importance, level):
    head = "Of 100 rounded numbers, 3 (3 %) became infinite, 0 (0 %) zero and 0 (0 %) subnormal."
    most = "The most infinities outside the backward pass: 3 in a linear forward (train.py:7), 3 % of its numbers and "
    most += "100 % of these infinities."
    given = [] if importance is None else [advice("overflows", importance)]
    assert said(level, *given, advice("steps_that_no_scale_mends"), ledger=[FORWARD]) == [head, most]


def test_every_rule_that_a_sentence_names_is_one_and_speaks_of_it():
    sections = content(updates=[{"name": "w", "lost": 0.5}], ledger=[FORWARD, BACKWARD])
    named = [(text, rule) for text, _, _, *rules in summary._statements(sections) for some in rules for rule in some]
    assert {rule for _, rule in named} <= {rule.__name__ for rule, *_ in RULES}
    for text, rule in named:
        assert text.replace("\xa0", " ") in said(PROBLEM, advice(rule), **{**sections, "advice": None}), rule


def test_an_evaluation_is_not_asked_about():
    step = {"flops": 300, "dtype": "float16", "misaligned": [], "eligible": True, "module": "net", "op": "linear"}
    step |= {"axes": {"m": "rows"}, "m": 64, "phase": "forward"}
    back = {**step, "phase": "backward", "axes": {"k": "rows"}, "k": 64}
    evaluation = {**step, "m": 250, "misaligned": ["m"], "eligible": False}
    assert "100 % of the work in 2 matrix products." in said(FINE, products=[step, back, evaluation])[-1]
    assert "0 % of the work in 1 matrix product (1 with" in said(NOTE, products=[evaluation])[-1]  # nothing was trained


@pytest.mark.parametrize(
    ("largest", "infinite", "end"),
    [
        (1.5, None, ": the weight gradient of net.a is up to 1.5, so 49,152 of 65,504."),
        (
            0.5,
            None,
            ": the weight gradient of net.a is up to 0.5, so 16,384 of 65,504, and no scaler takes a larger one.",
        ),
        (1.5, 2.0**16, ": at 2¹⁶ the weight gradient of net.a was infinite."),
    ],
)
def test_the_best_scale_says_what_limits_it(largest, infinite, end):
    ceiling = {"name": "net.a", "role": "weight gradient", "largest": largest, "infinite": infinite}
    found = said(NOTE, histograms={"best_scale": 2.0**15, "ceiling": ceiling})
    assert f"The best constant loss scale is 2¹⁵{end}" in found


def test_a_run_without_advice_says_that_and_what_was_looked_at():
    text = summary.nothing(
        {"ledger": [BACKWARD], "summary": {"iterations": 4}, "scale": {"skipped": [1]}, "by_hand": 2}
    )
    head, seen = text.replace("\xa0", " ").splitlines()
    assert head == (
        "Nothing to report. Of 1,000 rounded numbers, 3 (0.3 %) became infinite and 20 (2 %) zero; "
        "1 of 4 steps (25 %) were skipped."
    )
    assert seen.startswith("Looked at: 1 row of ops at their lines, 0 tensors") and "(at 2 places)" in seen
    assert summary.nothing({}) == "Nothing ran in the audited block."
