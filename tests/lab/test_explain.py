"""explain: everything public is explained, and every line that it cites exists."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import tinymp as mp
from tinymp import nn, ops, optim, precision
from tinymp.autograd import Op
from tinymp.lab import topics
from tinymp.lab.ablate import DECISIONS
from tinymp.lab.explain import explain, names, overview

ROOT = Path(mp.__file__).parent.parent


def op_classes(base=Op):
    for cls in base.__subclasses__():
        yield cls
        yield from op_classes(cls)


@pytest.mark.parametrize("what", names())
def test_everything_is_explained_and_its_lines_exist(what):
    for name in names()[what]:
        e = explain(name)
        assert e.topic.rule and e.read, name
        for line, called in e.read.items():
            path, number = line.rsplit(":", 1)
            text = lines_of(path)[int(number) - 1]
            called = called.removesuffix(", on a GPU").rpartition(".")[2]
            assert re.match(rf"\s*((def|class) )?{called}\b", text), text
        shown = str(e)
        assert all(line in shown for line in e.read) and max(map(len, shown.splitlines())) <= 120, name
        assert e.formula or what not in ("op", "layer", "optimizer", "policy"), name
        assert e.kind is precision.UPDATE or what != "optimizer"


@cache
def lines_of(path):
    return (ROOT / path).read_text(encoding="utf-8").splitlines()


def test_names_are_all_that_is_public():
    listed = names()
    assert set(listed["layer"]) == {name for name in nn.__all__ if isinstance(getattr(nn, name), type)}
    assert {*listed["optimizer"], *listed["tool"]} == set(optim.__all__)
    assert set(listed["policy"]) == set(mp.POLICIES)
    assert {*ops.METHODS.split()} <= set(listed["op"])
    text = " ".join(overview().split())
    assert all(f" {name}" in text for name in topics.TOPICS)


def test_names_are_found_however_they_are_written():
    for spelling in ("batch_norm", "batch norm", "Batch-Norm", "BATCHNORM", " batch norms "):
        assert explain(spelling).name == "batch_norm"
    assert explain("batch norm").topic == topics.TOPICS["batch norm"]
    assert explain("master copy").name == "master weights"
    assert explain("subnormal").name == "subnormals"
    assert explain("fp16 accumulate").what == "policy"
    for word in ("accumulator", "underflow", "GradScaler", "only", "eps", "momentum", "nan"):
        assert explain(word).topic == explain(topics.WORDS[word]).topic, word
    for decision in DECISIONS:  # what `tinymp ablate` lists
        assert f"tinymp ablate cnn --only {decision.name}: " in str(explain(decision.name)), decision.name


# Topic, the place that is named first, questions: those of a heading of the page, and others
PAGE, OTHERS = (ROOT / "docs/questions.md").read_text(), Path(__file__).with_name("questions.txt").read_text()
ROWS = [(topic, place, head) for head, topic, place in re.findall(r"^## (.*)\n\n([a-z0-9 ]+): `(.*)`$", PAGE, re.M)]
ROWS += re.findall(r"^([a-z0-9 ]+): `(.*)`: (.*)$", OTHERS, re.M)
ASKED = [(topic, place, one) for topic, place, questions in ROWS for one in re.findall(r"[^?\s][^?]*", questions)]
BARE = [
    ("overflow", "store", "loss is nan"),
    ("loss scaling", "DynamicLossScaler", "GradScaler"),
    ("storage", "Policy.cast", "autocast"),
    ("kinds", "KINDS", "which ops are FP32"),
]


@pytest.mark.parametrize(("topic", "place", "question"), ASKED + BARE)
def test_a_question_is_answered_by_its_topic_and_the_line_to_read(topic, place, question):
    e = explain(question)
    line, called = next(iter(e.read.items()))
    assert (e.name, e.what, called) == (topic, "topic", place)
    path, number = line.rsplit(":", 1)
    assert re.match(rf"\s*(def |class )?{place.rpartition('.')[2]}\b", lines_of(path)[int(number) - 1])
    assert e.topic.source and f"{line}  {place}" in str(e)


def test_each_topic_is_asked_for_in_two_ways():
    assert all(sum(topic == asked for asked, *_ in ASKED) >= 2 for topic in topics.TOPICS)


@pytest.mark.parametrize(
    ("question", "file", "called"),
    [
        ("where are Tensor Cores used?", "tinymp/backend/gpu.py", "multiply"),
        ("why did my step get skipped?", "tinymp/gpu/scaler.py", "should_skip, on a GPU"),
        ("is softmax computed in FP16?", "tinymp/gpu/softmax.py", "softmax_forward, on a GPU"),
        ("does batch norm run in FP32?", "tinymp/gpu/norm.py", "batch_norm_forward, on a GPU"),
    ],
)
def test_a_question_names_the_lines_that_a_gpu_runs(question, file, called):
    assert (file, called) in [(line.split(":")[0], of) for line, of in explain(question).read.items()]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("sofmax", "softmax"),
        ("", "topics: storage"),
    ],
)
def test_unknown_names_are_answered_with_what_is_like_them(name, near):
    with pytest.raises(ValueError, match=near):
        explain(name)


SECTIONS = {"MPT": {"3.1", "3.2", "3.3", "4.3", "4.5"}, "NVG": {"2.1", "2.2", "2.3.1", "2.3.2", "5.4.2", "5.5"}}


def test_text_refers_to_what_there_is():
    known = topics.TOPICS
    words = [word for topic in known.values() for said in topic.asked.values() for word in said.split(", ") if word]
    assert len(words) == len({*words, *known}) - len(known)  # none means two topics
    kinds, primitives = {kind.name for kind in precision.KINDS}, {"widen", "store", "gemm", "reduce"}
    assert kinds | primitives | {f.name for f in fields(mp.Policy)} - {"name"} <= set(topics.WORDS)
    own = kinds.union(mp.POLICIES, optim.__all__, nn.__all__, (cls.__name__ for cls in op_classes()), ["GradScaler"])
    assert {word for word in words if word != word.lower()} <= own
    for name, topic in known.items():
        for paper, cited in re.findall(r"(MPT|NVG)(.*?)(?=MPT|NVG|$)", topic.source):
            sections = set(re.findall(r"\d+(?:\.\d+)+", cited))
            assert sections <= SECTIONS[paper] and (sections or name in ("stochastic rounding", "tf32")), name
    assert {decision.topic for decision in DECISIONS} <= set(known)
