"""What an audit may have found: a report's content with every section, made up."""

import math
import random

MODULES = ("net.stem.conv", "net.stem.norm", "net.layer1.conv", "net.layer1.norm", "net.layer2.conv", "net.head.linear")


def row(module, op, phase, kind, **columns):
    """A row of the ledger as `Row.as_dict` gives it, with one rounding."""
    counts = {"rounded": 4096, "zero": 0, "subnormal": 0, "infinite": 0, "largest": 1.5}
    counts |= {k: columns.pop(k) for k in counts if k in columns}
    line = {"elements" if k == "rounded" else k: v for k, v in counts.items()}
    where = columns.get("where", "ops/dot.py:39")
    source = {"DOT": "MPT 3.3, NVG 2.2", "REDUCTION": "MPT 3.3, NVG 2.3.1", "UPDATE": "MPT 3.1"}.get(kind, "-")
    return {
        **{"module": module, "op": op, "phase": phase, "kind": kind, "caller": "train.py:17", "where": where},
        **{"source": source, "read": "float16", "computed": "float32", "accumulated": "float32", "written": "float16"},
        **{"calls": 14, "elements": counts["rounded"], **counts, **columns},
        "roundings": {where: line} if counts["rounded"] else {},
    }


def ledger():
    """Some rows of a small network, in the order in which they ran."""
    conv, norm, linear = ("conv2d", "DOT"), ("batch_norm", "REDUCTION"), ("linear", "DOT")
    ops = [conv, norm, conv, norm, conv, linear]
    forward = [
        row(m, op, "forward", kind, rounded=22_478_848 >> i, subnormal=571 >> i, largest=5.8 + i)
        for i, (m, (op, kind)) in enumerate(zip(MODULES, ops))
    ]
    backward = [
        row(m, op, "backward", kind, rounded=11_239_424 >> i, zero=6_030 * i, subnormal=30_140 * i, largest=3727.0)
        for i, (m, (op, kind)) in enumerate(zip(reversed(MODULES), reversed(ops)))
    ]
    backward[0] |= {"infinite": 663, "largest": "inf"}
    relu = row("net.relu", "relu", "forward", "POINTWISE", rounded=0, largest=0.0)
    cast = row("", "cast", "cast", "-", read="float32", accumulated="-", computed="-", where="tensor.py:507")
    updates = [
        row(f"{m}.weight", "adam", "update", "UPDATE", written="float32 master, float16 copy", subnormal=8 * i)
        for i, m in enumerate(MODULES)
    ]
    return [cast, *forward, relu, *backward, *updates]


def place(module, op="conv2d", phase="forward", **more):
    return {"module": module, "op": op, "phase": phase, "caller": "train.py:17", "where": "ops/conv.py:201", **more}


def scales():
    """A loss scale that comes down at first, grows twice, and meets two overflows of another cause."""
    history, skipped, scale = [[0, 2.0**24]], [0, 1, 2, 3, 4, 5, 120, 171], 24
    for i in range(200):
        scale += -1 if i in skipped else i in (60, 150)
        if scale != math.log2(history[-1][1]):
            history.append([i + 1, 2.0**scale])
    high = {"cause": "loss scale too high", "value": 246_900.0, "text": "At S = 1 they are finite, at most 0.0147."}
    causes = [
        place("net.head.linear", "linear", "backward", iteration=i, scale=2.0 ** (24 - i), **high) for i in range(6)
    ]
    forward = {
        "cause": "forward overflow",
        "value": "inf",
        "text": "81,920 does not fit FP16, whatever the loss scale.",
    }
    causes.append(place("net.layer2.conv", iteration=120, scale=2.0**18, **forward))
    losses = {"MIXED, train.py:17": [[i, 2.3 * 0.99**i if i != 120 else "inf"] for i in range(200)]}
    return {"history": history, "skipped": skipped, "causes": causes, "losses": losses}


def bytes_of():
    half, gradients = {"float16": 842_000, "float32": 768}, {"float32": 1_684_768}
    kept = {"float16": 12_845_056, "float32": 98_304, "int64": 512}
    state = {"masters": {"float32": 1_684_000}, "optimizer": {"float32": 3_370_000}}
    fp32 = {"weights": gradients, "gradients": gradients, "activations": {"float32": 25_789_000}}
    return {
        "roles": ["weights", "masters", "gradients", "activations", "optimizer"],
        "measured": {"weights": half, "gradients": half, "activations": kept, **state},
        "predicted": {"weights": half, "activations": {"float16": 12_900_000}},
        "fp32": {**fp32, "optimizer": state["optimizer"]},
        "ratio": 1.528,
    }


def products():
    for i, m in enumerate(MODULES):
        odd = i == 0
        size = {"m": 50_176 >> i, "n": 32 << i, "k": 9 if odd else 288, "batch": 1, "calls": 200, "dtype": "float16"}
        padding = {"misaligned": ["k"] if odd else [], "padding_cost": 7 / 9 if odd else 0.0}
        padded = [size["m"], size["n"], 16 if odd else 288]
        yield from (place(m, phase=phase, padded=padded, **size, **padding) for phase in ("forward", "backward"))


def advice(text, importance, rule):
    why = {"why": "6 of the first 6 steps were skipped.", "where": "train.py:9", "source": "MPT 3.2, NVG 2.3.2"}
    return {"text": text, "importance": importance, "rule": rule, **why}


def content(**changes):
    """Every section. Keyword arguments replace sections; None takes one out."""
    shares = [random.Random(i).random() ** 2 for i, _ in enumerate(MODULES)]
    near = {"calls": 200, "elements": 22_478_848, "local_mean": 0.25, "local_max": 0.5}
    lost = {"elements": 9000, "zero": 9, "subnormal": 30, "beyond": 1, "bias": -1e-3, "snr": 30.0}
    summed = {"ulps": 0.2, "bias": -0.1, "felt": 1e-3}
    picture = "data:image/svg+xml;base64,"
    sections = {
        "title": "A small CNN on MNIST",
        "created": "2025-03-14 15:09",
        "policy": "MIXED(storage=float16, FP32 accumulators and masters)",
        "environment": {"tinymp": "0.1.0", "python": "3.12.3", "system": "Linux", "cpu": "2 cores"},
        "summary": {"iterations": 200},
        "ledger": ledger(),
        "histograms": {
            "tensors": [{"role": "weight gradient", "scale": 2.0**15}],
            "best_scale": 2.0**13,
            "margin": 3.7,
        },
        "updates": [
            {
                **{"name": f"{m}.weight", "updates": 120_000, "lost": share, "unchanged_by_zero": share / 9},
                **{"above_2048": share * 1.1, "iterations": 192, "fp32": "norm" in m},
            }
            for m, share in zip(MODULES, shares)
        ],
        "scale": scales(),
        "bytes": bytes_of(),
        "products": list(products()),
        "shadow": [
            place(m, **near, inherited_mean=0.4 + i, inherited_max=3.0 * 4**i, inherited_zeros=7 * i)
            for i, m in enumerate(MODULES)
        ],
        "formats": [place(m, losses={"bf16": lost, "e4m3-tensor": lost}) for m in MODULES],
        "accumulators": [place(m, k=9, errors={"fp32": summed, "volta": summed}) for m in MODULES],
        "pictures": {**dict.fromkeys(("lost", "scale", "bytes"), picture), "histograms": [("Weights", picture)]},
        "advice": [
            advice("Start the loss scale at 2¹⁵.", 80, "steps_that_no_scale_mends"),
            advice("Give net.stem.conv 8 input channels instead of 1.", 12, "unaligned_products"),
        ],
    }
    return {k: v for k, v in (sections | changes).items() if v is not None}
