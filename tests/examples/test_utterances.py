"""Utterances: spectrograms, what eSpeak says, and recordings as they come."""

import gzip
import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy.io import wavfile

from examples.paper import utterances
from examples.paper.utterances import BANDS, HELD_OUT, LANGUAGES, RATE, VOICES, recorded, spectrogram, synthesised

pytest.importorskip("espeakng_loader")
pytestmark = pytest.mark.cpu


def tone(hertz, seconds=0.5, rate=RATE):
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)


def test_spectrogram_of_a_tone():
    frames = spectrogram(tone(1000) + np.random.default_rng(0).normal(0, 1e-3, RATE // 2))
    assert frames.shape == (1 + (RATE // 2 - 160) // 80, BANDS)
    assert frames.dtype == np.float32
    assert set(frames.argmax(1)) == {1000 // 50}
    assert frames.mean() == pytest.approx(0, abs=1e-5)
    assert frames.std() == pytest.approx(1, abs=1e-5)
    loud = spectrogram(7 * tone(440))
    np.testing.assert_allclose(loud, spectrogram(tone(440)), atol=1e-3)  # whatever the loudness


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
def test_any_higher_rate(rate):
    sound = utterances.resampled(tone(1500, rate=rate), rate)
    assert len(sound) == pytest.approx(RATE / 2, abs=1)
    assert set(spectrogram(sound)[2:-2].argmax(1)) == {30}


def test_warped():
    frames = spectrogram(tone(1000) + np.random.default_rng(0).normal(0, 1e-3, RATE // 2))
    np.testing.assert_array_equal(utterances.warped(frames, 1.0), frames)
    for factor, band in ((0.8, 25), (1.25, 16)):  # 1000 Hz come to be 1250 Hz, 800 Hz
        other = utterances.warped(frames, factor)
        assert (other.shape, other.dtype) == (frames.shape, np.float32)
        assert set(other.argmax(1)) == {band}


def test_what_a_spectrogram_refuses():
    with pytest.raises(ValueError, match=r"expected a sound of at least 20 ms, got 12\.5 ms"):
        spectrogram(tone(100)[:100])
    with pytest.raises(ValueError, match="got silence"):
        spectrogram(np.zeros(RATE))
    with pytest.raises(ValueError, match="expected at least 8000 samples per second, got 6000"):
        utterances.resampled(tone(100), 6000)


# -------------------------------------------------------------------------------------------------- synthesised speech


def sentences(language, pattern):
    """All that a pattern can say."""
    words = LANGUAGES[language].words
    kinds = re.findall(r"{(\w+)}", pattern)
    for some in itertools.product(*(words[kind].split() for kind in kinds)):
        yield re.sub(r"{\w+}", "{}", pattern).format(*some)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_pattern_and_word_is_heard_in_training(language):
    for pattern in LANGUAGES[language].patterns:
        learned = [text for text in sentences(language, pattern) if not utterances.unheard(text)]
        assert learned, pattern
    for kind, words in LANGUAGES[language].words.items():
        patterns = [p for p in LANGUAGES[language].patterns if f"{{{kind}}}" in p]
        learned = {text for p in patterns for text in sentences(language, p) if not utterances.unheard(text)}
        assert all(any(word in text for text in learned) for word in words.split())


@pytest.mark.parametrize("language", LANGUAGES)
def test_synthesised_speech(language):
    corpus = synthesised(language, 12, 6)
    assert (len(corpus.training), len(corpus.held_out)) == (12, 6)
    assert {c for part in (corpus.training, corpus.held_out) for one in part for c in one.text} == set(corpus.alphabet)
    assert not {one.text for one in corpus.training} & {one.text for one in corpus.held_out}
    for part, voices in ((corpus.training, VOICES), (corpus.held_out, HELD_OUT)):
        for frames, text, voice in part:
            dialect, timbre = voice.split("+")
            assert dialect in LANGUAGES[language].dialects
            assert timbre in voices.split()
            assert 30 < len(frames) < 400
            assert frames.shape[1] == BANDS
            assert np.isfinite(frames).all()
            assert re.fullmatch("[a-z ]+" if language == "english" else "[一-鿿]+", text)
    again = synthesised(language, 12, 6)
    assert all(np.array_equal(a.frames, b.frames) for a, b in zip(corpus.training, again.training))
    assert [one.text for one in synthesised(language, 12, 6, seed=1).training] != [one.text for one in again.training]


def test_every_voice_speaks_and_none_is_held_out_and_learned():
    assert not set(VOICES.split()) & set(HELD_OUT.split())
    orders = [("one", f"en-us+{timbre}", 160, 50) for timbre in f"{VOICES} {HELD_OUT}".split()]
    for word, language in (("one", "english"), ("一", "mandarin")):
        orders += [(word, f"{dialect}+f1", 160, 50) for dialect in LANGUAGES[language].dialects]
    sounds = [sound for _, sound in utterances.speak(orders)]
    assert all(sound.std() > 100 for sound in sounds)


@pytest.mark.parametrize("voice", ["en+nobody", "nowhere+f1"])
def test_a_voice_that_does_not_exist(voice):
    with pytest.raises(RuntimeError, match=f"espeakng-loader has no voice '{re.escape(voice)}'"):
        utterances.speak([("one", voice, 160, 50)])


def test_without_espeak():
    program = utterances.__file__.replace("utterances", "espeak")
    done = subprocess.run([sys.executable, "-S", program], input=b"[]", capture_output=True)  # -S: without packages
    assert done.returncode == 1
    assert b"needs the package espeakng-loader: pip install espeakng-loader (or use --data)" in done.stderr


# ---------------------------------------------------------------------------------------------------------- recordings


@pytest.fixture
def folder(tmp_path):
    """Twelve recordings in Asterisk's layout, two in a folder of their own."""
    sounds = tmp_path / "usr/share/sounds/en"
    (sounds / "digits").mkdir(parents=True)
    for i in range(12):
        path = sounds / (f"digits/{i}.wav" if i < 2 else f"word-{i}.wav")
        wavfile.write(path, RATE, (8000 * tone(300 + 50 * i)).astype(np.int16))
    lines = ["; Sounds", "", "digits/0: Zero.", "digits/1: one"] + [
        f"word-{i}: It's (loud) word {i}!" for i in range(2, 12)
    ]
    with gzip.open(tmp_path / "core-sounds.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join([*lines, "beep: [a beep]", "missing: Not there."]))
    return tmp_path


def test_recordings(folder):
    corpus = recorded(folder)
    assert [one.text for one in corpus.held_out] == ["zero", "it's word 10"]
    assert [one.text for one in corpus.training] == ["one"] + [f"it's word {i}" for i in (*range(2, 10), 11)]
    assert corpus.alphabet == "".join(sorted(set("zero one it's word 0123456789")))
    assert corpus.training[0].source.endswith("core-sounds.txt.gz, line 4")
    np.testing.assert_array_equal(
        corpus.training[0].frames, spectrogram((8000 * tone(350)).astype(np.int16).astype(np.float32))
    )


def test_other_formats_of_recordings(folder):
    """Tabs, other rates and sample types, several channels; too long a recording is left out."""
    plain = {one.text: one.frames for one in recorded(folder).training}
    sounds = folder / "usr/share/sounds/en"
    (folder / "core-sounds.txt.gz").unlink()
    (folder / "texts.tsv").write_text(
        "\n".join(f"en/word-{i}.wav\tIt\u2019s WORD:  {i}" for i in range(2, 12)), "utf-8"
    )
    wavfile.write(sounds / "word-3.wav", 16000, tone(450, rate=16000))
    wavfile.write(sounds / "word-4.wav", RATE, (8000 * np.stack([tone(500)] * 2, 1)).astype(np.int16))
    wavfile.write(sounds / "word-5.wav", RATE, (128 + 100 * tone(550)).astype(np.uint8))
    wavfile.write(sounds / "word-6.wav", RATE, np.tile(tone(600), 30))
    found = {one.text: one.frames for one in recorded(folder).training}
    assert found.keys() == {f"it's word {i}" for i in (3, 4, 5, 7, 8, 9, 10, 11)}
    for name in found.keys() & plain.keys():
        assert len(found[name]) == len(plain[name])
        assert (found[name].argmax(1) == plain[name].argmax(1)).all()
    np.testing.assert_array_equal(found["it's word 4"], plain["it's word 4"])


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda d: (d / "word-3.wav").write_bytes(b"RIFFxxxx"), r"word-3\.wav: expected a WAV file that SciPy reads"),
        (lambda d: (d / "word-3.wav").write_bytes(b""), r"word-3\.wav: expected a WAV file that SciPy reads"),
        (lambda d: wavfile.write(d / "word-3.wav", 4000, tone(9)), r"word-3\.wav: expected at least 8000 .* got 4000"),
        (lambda d: wavfile.write(d / "word-3.wav", RATE, tone(9)[:80]), r"word-3\.wav: expected a sound of at least"),
        (lambda d: wavfile.write(d / "word-3.wav", RATE, 0 * tone(9)), r"word-3\.wav: expected a sound, got silence"),
        (lambda d: (d / "b.txt").write_text("a: b"), "expected one file of texts .* got 2"),
        (
            lambda d: gzip.open(d.parents[3] / "core-sounds.txt.gz", "w").close(),
            "expected at least 2 recordings .* got 0",
        ),
        (
            lambda d: (d.parents[3] / "core-sounds.txt.gz").write_bytes(b"a: b"),
            "expected a text in UTF-8: Not a gzipped",
        ),
    ],
)
def test_broken_recordings(folder, break_it, message):
    break_it(folder / "usr/share/sounds/en")
    with pytest.raises(ValueError, match=message):
        recorded(folder)


def test_broken_texts(folder):
    (folder / "core-sounds.txt.gz").unlink()
    texts = folder / "texts.txt"
    texts.write_text("word-2: two\nword-3 three\n")
    with pytest.raises(ValueError, match=r"texts\.txt, line 2: expected a name, a tab or ': ', .* got 'word-3 three'"):
        recorded(folder)
    texts.write_bytes(b"word-2: \xff")
    with pytest.raises(ValueError, match=r"texts\.txt: expected a text in UTF-8"):
        recorded(folder)
    with pytest.raises(FileNotFoundError, match="nowhere: expected a folder with recordings"):
        recorded(folder / "nowhere")
