"""Utterances: spectrograms, and what eSpeak says."""

import re

import numpy as np
import pytest

from examples.paper.utterances import BANDS, HELD_OUT, LANGUAGES, RATE, VOICES, spectrogram, synthesised

pytest.importorskip("espeakng_loader")
pytestmark = pytest.mark.cpu


def test_spectrogram_of_a_tone():
    tone = np.sin(2 * np.pi * 1000 * np.arange(RATE // 2) / RATE).astype(np.float32)
    frames = spectrogram(7 * tone + np.random.default_rng(0).normal(0, 1e-3, RATE // 2))
    assert frames.shape == (1 + (RATE // 2 - 160) // 80, BANDS) and frames.dtype == np.float32
    assert set(frames.argmax(1)) == {1000 // 50}
    assert (frames.mean(), frames.std()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))


@pytest.mark.parametrize("language", LANGUAGES)
def test_synthesised_speech(language):
    corpus = synthesised(language, 12, 6)
    assert (len(corpus.training), len(corpus.held_out)) == (12, 6)
    assert {c for part in (corpus.training, corpus.held_out) for one in part for c in one.text} == set(corpus.alphabet)
    assert not {one.text for one in corpus.training} & {one.text for one in corpus.held_out}
    assert not set(VOICES.split()) & set(HELD_OUT.split())
    for part, voices in ((corpus.training, VOICES), (corpus.held_out, HELD_OUT)):
        for frames, text, voice in part:
            dialect, timbre = voice.split("+")
            assert dialect in LANGUAGES[language].dialects and timbre in voices.split()
            assert 30 < len(frames) < 400 and frames.shape[1] == BANDS and np.isfinite(frames).all()
            assert re.fullmatch("[a-z ]+" if language == "english" else "[一-鿿]+", text)
    again = synthesised(language, 12, 6)
    assert all(np.array_equal(a.frames, b.frames) for a, b in zip(corpus.training, again.training))
