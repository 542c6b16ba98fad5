"""The networks of MPT's tables: as large as published; torchvision's weights give its logits; small ones learn."""

import sys
import types

import numpy as np
import pytest

import tinymp as mp
from examples import paper as models
from oracle import host, randn, rng
from tinymp import nn, ops, optim
from tinymp.audit.listener import Listener
from tinymp.audit.products import Products

pytestmark = pytest.mark.cpu
FP64 = mp.Policy("FP64", storage="float64")

# Parameters, and millions of multiply-adds per image without auxiliary heads. AlexNet: Caffe's bvlc_alexnet, and Sze
# et al. (2017), table II. VGG-D, Inception v3: torchvision's pages of vgg16 and inception_v3 (15.47 and 5.71 GFLOPS).
# GoogLeNet: Caffe's bvlc_googlenet with two heads; "1.5 billion" in Szegedy et al. (2015). Inception v2: Caffe's
# BN-Inception, 11,295,240 less 10,016 biases before batch norm, and 2.0 billion. ResNet-50: 25.55 million; the resnet50
# of torchvision, which differs in the order of its layers, has 4.09 GFLOPS.
IMAGES = {
    models.AlexNet: (60_965_224, 224, 724, 0.001),
    models.VGG: (138_357_544, 224, 15_470, 0.001),
    models.GoogLeNet: (13_378_280, 224, 1_500, 0.06),
    models.InceptionV2: (11_295_240 - 10_016, 224, 2_000, 0.02),
    models.InceptionV3: (27_161_264, 299, 5_710, 0.001),
    models.PreActResNet: (25_549_352, 224, 4_090, 0.001),
}
LEARN = models.GoogLeNet, models.PreActResNet
# SSD300: torchvision's ssd300_vgg16; Faster R-CNN: py-faster-rcnn's for PASCAL VOC; GPT-2 small; Deep Speech 2: MPT
# section 4.3. NMT (MPT section 4.4): an LSTM layer that reads n numbers has 4 * 1024 (n + 1024 + 2) weights and biases;
# of n = 1024 there are nine, of n = 2048 two; embeddings, attention, output.
OTHERS = {
    "ssd": (lambda: models.SSD(91), 35_641_826),
    "faster_rcnn": (lambda: models.FasterRCNN(21), 137_078_239),
    "gpt": (models.GPT, 124_439_808),
    "deepspeech2": (lambda: models.DeepSpeech2(6001, hidden_size=3360), 214_638_545),
    "nmt": (
        lambda: models.NMT(100_000, 40_000, num_layers=5),
        9 * 8_396_800 + 2 * 12_591_104 + 140_000 * 1024 + 1024**2 + 40_000 * 1025,
    ),
}


@pytest.mark.parametrize("network", IMAGES, ids=lambda network: network.__name__)
def test_published_sizes_of_images(network):
    """And a step of those that nothing else here runs, on arrays without values."""
    parameters, size, million, close = IMAGES[network]
    n = 2 if network is models.InceptionV3 else 1  # its heads normalize single pixels
    with mp.device("meta"), mp.use(mp.MIXED), Listener([products := Products()]):
        model = mp.MIXED.cast(network())
        assert sum(p.array.size for p in model.parameters()) == parameters
        if network in (models.VGG, *LEARN):
            return
        images, labels = mp.MIXED.cast(ops.zeros(n, 3, size, size)), mp.tensor(np.zeros(n, np.int64))
        models.loss(model(images), labels).backward()
    forward = [row for row in products.rows if row.phase == "forward" and "aux" not in row.module.lower()]
    macs = sum(row.batch * row.m * row.n * row.k * row.calls for row in forward)
    assert macs / n / 1e6 == pytest.approx(million, rel=close)


@pytest.mark.parametrize("name", OTHERS)
def test_published_sizes_of_others(name):
    make, parameters = OTHERS[name]
    with mp.device("meta"):
        assert sum(p.array.size for p in make().parameters()) == parameters


@pytest.mark.peer
def test_torchvisions_weights_give_its_logits(monkeypatch):
    torch = pytest.importorskip("torch")
    # its compiled operators, which these networks do not need, are for CUDA's PyTorch: without them it would not load
    monkeypatch.setitem(sys.modules, "torchvision._meta_registrations", types.ModuleType("_meta_registrations"))
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    peer, images = torchvision.models.vgg16(weights=None, init_weights=True).double().eval(), randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = peer(torch.from_numpy(images)).numpy()
    model = FP64.cast(models.VGG().eval())
    model.load_state_dict({k: v.numpy() for k, v in peer.state_dict().items()})
    with mp.no_grad():
        logits = model(mp.tensor(images)).numpy()
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(logits, expected, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("network", LEARN)
def test_small_ones_learn(network):
    """Four images by heart. The paper's small images of 28 pixels; one channel."""
    policy = mp.MIXED
    mp.manual_seed(0)
    model = policy.cast(network(4, in_channels=1, scale=models.SMALL))
    images, labels = policy.cast(mp.tensor(randn(4, 1, 28, 28).astype("float32"))), mp.tensor(np.arange(4))
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    optimizer, scaler = optim.Adam(model.parameters(), 2e-3), optim.DynamicLossScaler(2.0**10)
    losses = []
    with mp.use(policy):
        for _ in range(12):
            loss = models.loss(model(images), labels)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert max(losses[-3:]) < 0.6 * losses[0], losses


V, P = 11, 16


def small_gpt():
    mp.manual_seed(0)
    return FP64.cast(models.GPT(V, P, 8, 2, 2)).eval()


def test_the_past_does_not_see_the_future():
    model, x = small_gpt(), rng().integers(0, V, (2, 9))
    y = model(mp.tensor(x)).numpy()
    x[:, 5:] = (x[:, 5:] + 1) % V
    other = model(mp.tensor(x)).numpy()
    np.testing.assert_array_equal(other[:, :5], y[:, :5])
    assert (np.abs(other[:, 5:] - y[:, 5:]).max(-1) > 1e-6).all()


def test_generating_is_as_reading_all_of_it_again():
    """Also of more than P tokens: it goes on from the last."""
    model, start = small_gpt(), mp.tensor(rng().integers(0, V, (2, 3)))
    x = start
    for _ in range(20):
        x = ops.cat([x, model(x[:, -P:]).argmax(-1)[:, -1:]], 1)
    np.testing.assert_array_equal(model.generate(start, 20, temperature=0).numpy(), x.numpy())


@pytest.mark.parametrize("layers", [2, 3])
def test_nmt_word_by_word_is_as_all_at_once(layers):
    mp.manual_seed(0)
    model = FP64.cast(models.NMT(20, 15, 8, layers))
    source, target = mp.tensor(rng().integers(4, 20, (6, 3))), mp.tensor(rng(1).integers(4, 15, (5, 3)))
    logits = model(source, [6, 2, 4], target)
    state = model.encode(source, [6, 2, 4])
    for t in range(5):
        log_p, state = model.step(host(target.array)[t], state)
        np.testing.assert_allclose(log_p, ops.log_softmax(logits[t], 1).numpy(), atol=1e-6)  # FP32


def test_more_padding_changes_no_gradient_of_deep_speech_2():
    """Nor the running statistics: batch norm counts the frames that utterances have."""
    results = []
    for more in (0, 9):
        mp.manual_seed(0)
        model = FP64.cast(models.DeepSpeech2(5, bands=9, context=3, scale=models.Scale(width=1 / 320)))
        x = np.full((3, 20 + more, 9), np.nan)
        for i, n in enumerate((15, 12, 20)):
            x[i, :n] = randn(n, 9, seed=i)
        logits, lengths = model(mp.tensor(x), [15, 12, 20])
        log_p = ops.log_softmax(logits.float(), 2).transpose(0, 1)
        loss = ops.ctc_loss(log_p, np.array([[1, 2, 3], [4, 4, 0], [2, 0, 0]]), lengths, [3, 2, 1])
        loss.backward()
        state = {name: host(value) for name, value in model.state_dict().items()}
        results.append((loss.item(), state | {name: host(p.grad) for name, p in model.named_parameters()}))
    (first, one), (second, other) = results
    assert first == pytest.approx(second, rel=1e-6)
    for name in one:
        scale = np.abs(one[name]).max()
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-6 * scale, err_msg=name)


def test_a_wider_beam_finds_what_greedy_misses():
    """The best first token leads nowhere: 0.4 * 1 is more than 0.6 * 0.5."""
    after = {0: [0, 0.6, 0.4, 0], 1: [0.25, 0.25, 0, 0.5], 2: [0, 0, 0, 1]}

    def step(tokens, state):
        with np.errstate(divide="ignore"):
            return np.log([after[t] for t in tokens.tolist()]), state

    assert models.beam_search(step, (), [0], end=3, max_length=4, beam_size=1)[0][0].tokens == [1]
    best, second = models.beam_search(step, (), [0], end=3, max_length=4, beam_size=2)[0]
    assert (best.tokens, second.tokens) == ([2], [1])
    assert np.exp(best.log_probability) == pytest.approx(0.4)
    assert best.score == pytest.approx(np.log(0.4) / (7 / 6) ** 0.6)
