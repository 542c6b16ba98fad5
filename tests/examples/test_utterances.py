"""Utterances: spectrograms, and what eSpeak says."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

from examples.paper import utterances
from examples.paper.utterances import BANDS, HELD_OUT, LANGUAGES, RATE, VOICES, spectrogram, synthesised

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
    assert b"needs the package espeakng-loader: pip install espeakng-loader" in done.stderr
