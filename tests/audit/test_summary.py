"""The summary: its sentences state what was planted."""

import pytest

from tinymp.audit.found import Found
from tinymp.audit.ledger import Rounding, Row
from tinymp.audit.summary import nothing, sentences


def row(phase, elements, zero, infinite):
    one = Row("net.a", "linear", phase, "train.py:7", "ops/x.py:9", "DOT")
    one.roundings["ops/x.py:10"] = Rounding(elements, zero, 0, infinite, 1.0)
    return one


LEDGER = [row("forward", 100, 0, 3), row("backward", 900, 20, 0)]


def update(**more):
    one = {"name": "w", "fp32": False, "master": True, "storage": "float16", "elements": 80, "lost": 0.0}
    return one | {"unchanged_by_zero": 0.0, **more}


def ceiling(largest, infinite=None):
    of = {"name": "net.a", "role": "weight gradient", "largest": largest, "infinite": infinite}
    lost = [{"role": "weight gradient", "scale": s, "values": 9, "zero": z} for s, z in ((1.0, 0.3), (2.0**15, 0.05))]
    return {"best_scale": 2.0**15, "ceiling": of, "lost": lost}


CAUSES = [{"cause": cause} for cause in ("loss scale too high", "loss scale too high", "forward overflow")]
LOST = {"role": "weight gradient", "scale": 1.0, "values": 200, "zero": 0.1}


@pytest.mark.parametrize(
    ("found", "steps", "said"),
    [
        ({}, 0, ["Nothing ran in the audited block."]),
        (
            {"ledger": LEDGER},
            0,
            [
                "Of 1,000 rounded numbers, 3 (0.3 %) became infinite, 20 (2 %) zero and 0 (0 %) subnormal.",
                "The most infinities outside the backward pass: 3 in net.a linear forward (train.py:7), 3 % of its "
                "numbers and 100 % of these infinities.",
                "The most zeros: 20 in net.a linear backward (train.py:7), 2.22 % of its numbers and 100 % of these "
                "zeros.",
            ],
        ),
        ({"updates": [update()]}, 0, ["All 80 updates are large enough to change an FP16 weight."]),
        ({"updates": [update(unchanged_by_zero=1)]}, 0, ["None of 80 updates changed a weight: all of them were 0."]),
        (
            {"updates": [update(lost=0.5, storage="bfloat16", master=False), update(lost=0.9)]},
            0,
            [
                "40 of 80 updates of w (50 %) are too small to change a BF16 weight, and are lost: it has no FP32 "
                "master."
            ],
        ),
        ({"scale": {"skipped": []}}, 4, ["None of 4 steps was skipped."]),
        (
            {"scale": {"skipped": [0, 1, 5], "causes": CAUSES}},
            6,
            ["3 of 6 steps (50 %) skipped: loss scale too high (2 ×), forward overflow (1 ×)."],
        ),
        (
            {"histograms": {"tensors": [{"scale": 1.0}], "lost": [LOST]}},
            0,
            ["Without a loss scale, FP16 makes 20 of 200 weight gradients (10 %) zero."],
        ),
    ],
)
def test_sentences(found, steps, said):
    first = [] if "ledger" in found or not found else ["Nothing ran in the audited block."]
    assert sentences(Found(**found), steps) == first + said


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (ceiling(1.5), ": the weight gradient of net.a is up to 1.5, so 49,152 of 65,504; it"),
        (ceiling(0.5), "is up to 0.5, so 16,384 of 65,504, and no scaler takes a larger one; it"),
        (ceiling(1.5, 2.0**16), " at most 2¹⁵: at 2¹⁶ the weight gradient of net.a was infinite; it"),
        (ceiling(None, 2.0**16), " is 2¹⁵: at 2¹⁶ the weight gradient of net.a was infinite; it"),
    ],
)
def test_the_best_scale_says_what_limits_it(given, end):
    text = sentences(Found(histograms=given), 0)[-1]
    assert text.startswith("The best constant loss scale is ") and end in text
    assert text.endswith("it keeps 25 % of the weight gradients from becoming zero.")


def test_a_run_without_advice_says_that_and_what_was_looked_at():
    found = Found(LEDGER, {"tensors": []}, scale={"skipped": [1]})
    head, seen = nothing(found, 4, "one step in 2", 2).splitlines()
    assert head == (
        "Nothing to report. Of 1,000 rounded numbers, 3 (0.3 %) became infinite and 20 (2 %) zero; "
        "1 of 4 steps (25 %) was skipped. Only one step in 2 was looked at."
    )
    assert seen.startswith("Looked at: 2 rows of ops at their lines, 0 tensors") and "(at 2 places)" in seen
