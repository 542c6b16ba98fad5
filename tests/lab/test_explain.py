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

pytestmark = pytest.mark.cpu  # the examples show NumPy's numbers

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
        for line in re.findall(r"--only (\S+)", shown):
            assert set(line.split(",")) <= {decision.name for decision in DECISIONS}


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
        assert decision in explain(decision.name).ablation, decision.name


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
    known, words = topics.TOPICS, [word for topic in topics.TOPICS.values() for word in topic.words.split(", ")]
    assert len(words) == len({*words, *known}) - len(known)  # none means two topics
    kinds, primitives = {kind.name for kind in precision.KINDS}, {"widen", "store", "gemm", "reduce"}
    assert kinds | primitives | {f.name for f in fields(mp.Policy)} - {"name"} <= set(topics.WORDS)
    own = kinds.union(mp.POLICIES, optim.__all__, nn.__all__, (cls.__name__ for cls in op_classes()), ["GradScaler"])
    assert {word for word in words if word != word.lower()} <= own
    for name, topic in known.items():
        assert set(topic.decisions.split()) <= {d.name for d in DECISIONS}
        for paper, cited in re.findall(r"(MPT|NVG)(.*?)(?=MPT|NVG|$)", topic.source):
            sections = set(re.findall(r"\d+(?:\.\d+)+", cited))
            assert sections <= SECTIONS[paper] and (sections or name in ("stochastic rounding", "tf32")), name
    assert {d for topic in known.values() for d in topic.decisions.split()} == {d.name for d in DECISIONS}
