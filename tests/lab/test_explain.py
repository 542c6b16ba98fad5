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


# Topic: the place that is named first: how it is asked
QUESTIONS = """
rounding: store: who rounds here? | which function rounds a result to FP16? | is it rounded to nearest, ties to
    even? | where do values get rounded? | is rounding to nearest even?
overflow: store: why is my loss nan? | where does the inf in my activations come from? | my loss became NaN after a
    few steps, what happened? | loss is nan | why do I get infinite gradients?
overflow: FP16_MAX: why 65504? | what happens above 65,504? | what is the largest FP16 number?
overflow: LossScaler.should_skip: why did my step get skipped? | who decides that an update is skipped? | why was
    the optimizer step skipped? | a step was skipped
loss scaling: Rule.__call__: when does S grow? | how often is the loss scale doubled? | when is S halved? | how does
    the loss scale grow? | after how many steps is S doubled?
loss scaling: DynamicLossScaler: how is GradScaler called here? | what replaces torch.cuda.amp.GradScaler? | which
    loss scale do I start with? | static or dynamic loss scaling? | where is the GradScaler? | GradScaler
loss scaling: LossScaler.scale: why is the loss multiplied by S? | where do I scale the loss?
loss scaling: unscaled: where are the gradients unscaled? | where are gradients divided by S?
master weights: Weights.write: where is the master rounded? | where is the FP16 copy of a weight made? | why are
    FP32 weights needed at all? | what is lost without a master copy? | why keep FP32 master weights? | when is the
    FP16 copy refreshed?
batch norm: BatchNorm.forward: in which precision does batch norm's variance accumulate? | is the mean of BatchNorm
    FP32? | does batch norm run in FP32? | is batch norm's variance computed in FP32?
batch norm: Running.update: are the running mean and variance FP32? | in which dtype are running statistics kept?
kinds: KINDS: which ops stay FP32? | which ops are FP32? | what is not computed in half precision? | which ops run
    in FP16 and which in FP32? | which operations are done in FP32? | what stays in FP32? | which ops are computed
    in FP32?
storage: Policy.cast: what is autocast here? | how do I turn on mixed precision? | where is model.half()? | which
    tensors are FP16? | how much memory does FP16 save? | autocast | where is autocast? | is there automatic mixed
    precision?
formats: BF16: why FP16 and not BF16? | should I use bfloat16 instead? | does BF16 need loss scaling? | how many
    bits has the exponent? | what is the difference between FP16 and BF16? | bf16 or fp16?
formats: E4M3: what is the range of FP8? | can I train in e5m2?
subnormals: store: what happens below 2^-24? | when does a gradient underflow to zero? | are denormals flushed? |
    what is the smallest number in FP16? | why do small gradients vanish?
tensor cores: multiply: where are Tensor Cores used? | does this run on Tensor Cores? | why should channels be
    multiples of 8? | when does it use tensor cores? | which code calls cuBLAS?
accumulation: gemm: in which precision does a matrix multiplication accumulate? | is a dot product summed in FP32? |
    does matmul accumulate in FP32? | what is an accumulator?
reductions: reduce: in which precision is a mean or sum computed? | is a sum over FP16 carried in FP32?
reductions: bias_gradient: how are bias gradients summed? | does the gradient of a bias stall?
reductions: DistributedDataParallel._outgoing: are gradients exchanged between processes in FP16? | what does
    all_reduce send?
softmax: Softmax.forward: why is the largest logit subtracted? | is softmax computed in FP16? | why does softmax
    need FP32? | why subtract the max in softmax?
losses: Loss: is the loss FP16 or FP32? | in which dtype is cross entropy computed? | why must the loss be FP32? |
    in which precision is the loss?
optimizer state: Groups.state_of: is Adam's momentum kept in FP32? | in which precision is the optimizer's state?
epsilon: Adam: why does eps 1e-8 become zero in FP16? | is Adam's epsilon too small for FP16?
gradient clipping: clip_grad_norm_: do I clip before or after unscaling? | where are gradients clipped? | should I
    unscale before clipping? | is the gradient norm computed in FP32?
gradient accumulation: Backward.deposit: how do I accumulate gradients over micro-batches? | are gradients of
    several backward calls added in FP32?
weight decay: SGD.update: does weight decay read the master or the copy? | is L2 regularisation added to scaled
    gradients?
checkpoints: save: what does a checkpoint hold, masters or copies? | is the master saved?
checkpoints: load: how do I resume training bit for bit? | what does load make the FP16 copies from?
kept modules: Policy.cast: how do I keep one layer in FP32? | can the last layer have another policy?
stochastic rounding: Device.cast_stochastic: can it round stochastically? | does random rounding help?
tf32: gemm: is TF32 on by default? | does my FP32 baseline use TF32?
attention: Attention.forward: are attention scores FP16? | in which precision are a transformer's attention weights?
recurrence: LSTM.forward: is the hidden state of an LSTM rounded in every step? | what does an RNN keep in FP32?
recurrence: GRU.forward: what does a GRU keep in FP32?
primitives: widen: which functions may change precision? | where can a conversion between FP16 and FP32 happen?
layer norm: LayerNorm.forward: does layer norm need FP32? | in which precision is RMSNorm computed?
movement: MOVEMENT: does a reshape or transpose round? | do slicing and indexing lose bits?
pointwise: POINTWISE: in which precision are elementwise ops computed? | are additions and multiplications of
    tensors FP16?
"""
ROWS = [row.split(": ", 2) for row in QUESTIONS.replace("\n    ", " ").strip().split("\n")]
ASKED = [(topic, place, question) for topic, place, questions in ROWS for question in questions.split(" | ")]


@pytest.mark.parametrize(("topic", "place", "question"), ASKED)
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
        assert set(topic.decisions.split()) <= {d.name for d in DECISIONS}
        for paper, cited in re.findall(r"(MPT|NVG)(.*?)(?=MPT|NVG|$)", topic.source):
            sections = set(re.findall(r"\d+(?:\.\d+)+", cited))
            assert sections <= SECTIONS[paper] and (sections or name in ("stochastic rounding", "tf32")), name
    assert {d for topic in known.values() for d in topic.decisions.split()} == {d.name for d in DECISIONS}
