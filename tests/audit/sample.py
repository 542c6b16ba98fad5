"""An invented result of an audit, in the form that the summary reads."""


def row(module, op, phase, kind, **columns):
    """A row of the ledger as `Row.as_dict` gives it, with one rounding."""
    counts = {"rounded": 4096, "zero": 0, "subnormal": 0, "infinite": 0, "largest": 1.5}
    counts |= {k: columns.pop(k) for k in counts if k in columns}
    line = {"elements" if k == "rounded" else k: v for k, v in counts.items()}
    where = columns.get("where", "ops/dot.py:39")
    return {
        **{"module": module, "op": op, "phase": phase, "kind": kind, "caller": "train.py:17", "where": where},
        **{"source": "MPT 3.3, NVG 2.2", "read": "float16", "computed": "float32", "accumulated": "float32"},
        **{"written": "float16", "calls": 14, "elements": counts["rounded"], **counts, **columns},
        "roundings": {where: line} if counts["rounded"] else {},
    }


def content(**changes):
    """Every section that the summary speaks of. Keyword arguments replace sections."""
    products = [
        {
            **{"module": "net.stem", "op": "conv2d", "phase": phase, "m": 50_176, "n": 32, "k": 9, "calls": 200},
            **{"flops": 10**9, "dtype": "float16", "misaligned": ["k"], "eligible": False},
        }
        for phase in ("forward", "backward")
    ]
    half = {"float16": 842_000}
    return {
        "summary": {"iterations": 200},
        "ledger": [row("net.stem", "conv2d", "forward", "DOT")],
        "histograms": {
            "tensors": [{"role": "weight gradient", "scale": 2.0**15}],
            "best_scale": 2.0**13,
            "margin": 3.7,
        },
        "updates": [{"name": "net.stem.weight", "lost": 0.25, "unchanged_by_zero": 0.1}],
        "scale": {"skipped": [0, 1], "causes": [{"cause": "loss scale too high", "iteration": i} for i in range(2)]},
        "bytes": {"measured": {"weights": half}, "fp32": {"weights": {"float32": 1_684_000}}, "ratio": 1.528},
        "products": products,
        "shadow": [{"module": "net.stem", "op": "conv2d", "phase": "forward", "local_max": 0.5}],
        **changes,
    }
