"""Checkpoints: everything comes back bit for bit, a run goes on as if it had never stopped, bad files are refused."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import checkpoint, nn

safetensors = pytest.importorskip("safetensors.numpy")
safe_open = pytest.importorskip("safetensors").safe_open
pytestmark = pytest.mark.cpu


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
    pairs = a.items() if isinstance(a, dict) else enumerate(a) if isinstance(a, (list, tuple)) else ()
    for key, value in pairs:
        same(value, b[key])
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif not pairs:
        assert a == b or a != a


def test_values_come_back_as_they_were(tmp_path):
    extra = {
        "numbers": [1, 2.5, True, None, float("inf"), float("nan"), "é\n", -(2**100)],
        "losses": np.array([np.inf]),
        "keys": {1: 0, "1": 1, 1.5: 2, None: 3, False: 4, np.int64(7): 5},
        "pair": (1, (2.0, [])),
        3: {"array": np.float64(0.1), "dict": {}},
        "zero": np.array(3.0),
        "half": np.array([1e-8, 65504, -0.0], np.float16),
        "columns": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "empty": np.zeros((0, 4), np.float32),
        "truths": np.array([True, False]),
    }
    mp.save(tmp_path / "extra", extra=extra, other=7)
    read = mp.load(tmp_path / "extra")
    assert read.pop("other") == 7
    extra[3]["array"] = 0.1
    same(read["extra"], extra)


def test_the_file_is_safetensors_and_replaces_another_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "run"
    mp.save(path, weights=np.arange(3.0))
    np.testing.assert_array_equal(safetensors.load_file(path)["weights"], [0, 1, 2])
    before = path.read_bytes()
    monkeypatch.setattr(safetensors, "save_file", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        mp.save(path, weights=np.zeros(3))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_cannot_be_saved_is_refused(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(TypeError, match=r"save: expected `extra/0` to be an array, a number or text, got set"):
        mp.save(path, extra=[{1}])
    with pytest.raises(ValueError, match=r"save: expected names without a slash, got two arrays `a/b/c`"):
        mp.save(path, a={"b/c": np.ones(1), "b": {"c": np.ones(1)}})
    with pytest.raises(TypeError, match=r"save: expected the keys of `a` to be text or numbers, got"):
        mp.save(path, a={(1, 2): 1})
    assert not path.exists()


def altered(path, change):
    """The checkpoint with other metadata or arrays, as a valid file of safetensors."""
    with safe_open(path, "np") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(metadata, arrays)
    safetensors.save_file(arrays, path, metadata)


FILES = {
    "no checkpoint": (lambda path: path.write_bytes(b"not a checkpoint"), "run to be a checkpoint of tinymp"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-5]), "run to be a checkpoint of tinymp"),
    "foreign": (
        lambda path: safetensors.save_file({"weight": np.ones(2)}, path),
        r"checkpoint of tinymp, got safetens",
    ),
    "newer": (
        lambda path: altered(path, lambda metadata, _: metadata.update(format="7", version="9.1")),
        r"in format 2, which tinymp .* reads, got format 7, written by tinymp 9\.1",
    ),
    "a bit": (
        lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
        "is not as it was written",
    ),
    "a shape": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"shape":[3,2]', b'"shape":[2,3]')),
        "is not as it was written",
    ),
    "NaN": (
        lambda path: mp.save(path, first=nn.Linear(1, 1), model={"weight": np.full((3, 2), np.nan, "f")}),
        r"expected the numbers of `model/weight` to be finite, got 6 of 6 that are infinite or NaN",
    ),
    "another model": (
        lambda path: mp.save(path, first=nn.Linear(1, 1), model=nn.Linear(2, 4)),
        r"load: `model` of .*run: load_state_dict: 'weight': expected shape",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_loaded_is_refused_and_nothing_changes(name, tmp_path):
    path, (spoil, message) = tmp_path / "run", FILES[name]
    first, model = nn.Linear(1, 1), nn.Linear(2, 3)
    mp.save(path, first=nn.Linear(1, 1), model=nn.Linear(2, 3))
    spoil(path)
    before = [first.state_dict(), model.state_dict(), mp.get_rng_state()]
    with pytest.raises(ValueError, match=message):
        mp.load(path, first=first, model=model)
    same(before, [first.state_dict(), model.state_dict(), mp.get_rng_state()])


def a_mask(value=-np.inf):
    """A model with an infinite buffer, and statistics."""
    model = nn.Sequential(nn.Module(), nn.BatchNorm1d(2))
    model[0].register_buffer("mask", mp.tensor([value, 0.0]))
    return model


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.BF16], ids=lambda p: p.name)
def test_a_mask_may_be_infinite(policy, tmp_path):
    model, path = policy.cast(a_mask()), tmp_path / "run"
    mp.save(path, model=model)
    model[1].weight.write(np.zeros(2, "f"))
    mp.load(path, model=model)
    assert model[1].weight.tolist() == [1, 1] and model[0].mask.tolist() == [-np.inf, 0]
    before = path.read_bytes()
    for name, broken in (("0.mask", policy.cast(a_mask(np.nan))), ("1.running_var", policy.cast(a_mask(0.0)))):
        if name[0] == "1":
            broken[1].running_var.array[:] = np.inf
        with pytest.raises(FloatingPointError, match=rf"`model/{name}` to be finite"):
            mp.save(path, model=broken)
    assert path.read_bytes() == before
    with pytest.raises(TypeError, match=r"`model` of .*'0\.mask': expected finite values, got 1"):
        mp.load(path, model=policy.cast(a_mask(0.0)))


@pytest.mark.parametrize("policy", [mp.FP32, mp.BF16, mp.NO_MASTER, mp.MIXED], ids=str)
def test_a_run_that_has_diverged_is_not_written_over_a_good_one(policy, tmp_path):
    """Nor weights that left the range of FP16: their masters are finite, but no load would take them."""
    model, path = policy.cast(nn.Linear(2, 3)), tmp_path / "run"
    mp.save(path, model=model)
    before = path.read_bytes()
    model.bias.write(np.array([1, 7e4, -7e4] if policy is mp.MIXED else [1, np.inf, np.nan], "f"))
    with pytest.raises(FloatingPointError, match=r"save: .*`model/bias` to be finite, got 2 of 3 .*run stays what it"):
        mp.save(path, model=model)
    assert path.read_bytes() == before


def test_a_load_that_fails_gives_back_the_random_numbers_that_it_drew(tmp_path):
    class Draws:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            mp.rand(3)
            raise ValueError("too late")

    mp.save(tmp_path / "run", part=Draws())
    before = mp.get_rng_state()
    with pytest.raises(ValueError, match=r"`part` of .*: too late"):
        mp.load(tmp_path / "run", part=Draws())
    same([before], [mp.get_rng_state()])


def test_what_is_small_can_be_read_alone(tmp_path):
    path = tmp_path / "run"
    mp.save(path, model=nn.Linear(2, 3), options={"lr": 0.1, "names": ("a", "b")}, curve=[np.ones(3)])
    path.write_bytes(path.read_bytes()[:-1] + b"!")  # arrays are not looked at
    mp.manual_seed(1)
    state = mp.get_rng_state()
    assert checkpoint.peek(path) == {"options": {"lr": 0.1, "names": ("a", "b")}}
    same(state, mp.get_rng_state())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="run to be a checkpoint of tinymp"):
        checkpoint.peek(path)


# ---- the checkpoints of a loop ----


def test_the_newest_stay(tmp_path):
    kept = mp.Checkpointer(tmp_path / "run", keep=2, every=10, model=nn.Linear(2, 3))
    assert kept.steps() == [] and kept.load() == {}
    for step in range(1, 7):
        assert not kept.save(10 * step - 1, accuracy=1.0)
        assert kept.save(10 * step, accuracy=0.5, loss=np.float32(step))
    assert kept.steps() == [50, 60]
    assert [p.name for p in sorted((tmp_path / "run").iterdir())] == [f"step-000000{n}.safetensors" for n in (50, 60)]
    again = mp.Checkpointer(str(tmp_path / "run"), keep=1, every=10, model=nn.Linear(2, 3))
    (killed := tmp_path / "run" / ".step-61.safetensors.part").mkdir()
    assert again.load() == {"step": 60, "accuracy": 0.5, "loss": 6.0} and again.load(50)["step"] == 50
    assert not killed.exists()
    np.testing.assert_array_equal(again.objects["model"].weight.array, kept.objects["model"].weight.array)
    (tmp_path / "run" / "step-7.safetensors").write_text("not ours")
    assert again.save(61, now=True) and again.steps() == [61]
    assert again.save(123_456_780) and again.steps() == [123_456_780]


def test_an_older_step_written_last_stays(tmp_path):
    """Who goes back to an earlier checkpoint and trains on from there keeps what is written."""
    kept = mp.Checkpointer(tmp_path, keep=1)
    kept.save(100)
    kept.save(50)
    assert 50 in kept.steps()


def test_two_in_one_folder_remove_what_is_their_own(tmp_path):
    a, b = (mp.Checkpointer(tmp_path, keep=1, every=100, model=nn.Linear(2, 3)) for _ in range(2))
    a.save(100)
    b.save(1000)
    b.save(1100)
    assert a.steps() == [100, 1100]
    a.save(200)
    assert a.steps() == [200, 1100]
    again = mp.Checkpointer(tmp_path, keep=1, model=nn.Linear(2, 3))  # goes on from what is there
    again.load()
    again.save(1101)
    assert again.steps() == [1101]


def test_what_a_checkpointer_refuses(tmp_path):
    with pytest.raises(TypeError, match="Checkpointer: expected `curve` to have state_dict and load_state_dict"):
        mp.Checkpointer(tmp_path, curve=[1.0])
    kept = mp.Checkpointer(tmp_path, model=nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"expected other names than those of its objects, got \['model'\]"):
        kept.save(1, model=1, loss=2)
    assert kept.steps() == [] and kept.save(1, loss=2)
    kept.path(3).write_bytes(kept.path(1).read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"load: expected .*step-00000003\.safetensors to be a checkpoint of tinymp"):
        kept.load()
    assert kept.load(1) == {"step": 1, "loss": 2}
