"""Utterances: spectrograms, and what eSpeak says."""

import re

import numpy as np
import pytest

from examples.paper.utterances import BANDS, HELD_OUT, LANGUAGES, VOICES, synthesised

pytest.importorskip("espeakng_loader")
pytestmark = pytest.mark.cpu


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
