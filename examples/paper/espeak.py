"""Let eSpeak NG speak, from the package espeakng-loader: a program of its own, which no other part of tinymp imports.

    python -m examples.paper.espeak < sentences.json > sounds

It reads a JSON list of [text, voice, words per minute, pitch], and writes for each the samples per second, their
number, both int32, and then the samples, int16. eSpeak keeps the phase of its waves and the state of its random numbers
from one sentence to the next, and there is no way to reset them: only a new process speaks the same list the same way.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path

SYNCHRONOUS, DONT_EXIT, UTF8 = 2, 0x8000, 1  # espeak's speak_lib.h: output, an option of initialising, an encoding
RATE, PITCH = 1, 3  # parameters
SEED = 1  # of the noise in whispers and in the breath of some voices
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def main() -> None:
    """Speak what standard input asks for. Ends with a message where the package or a voice is missing."""
    sentences = json.load(sys.stdin)
    try:
        import espeakng_loader
    except ImportError:
        sys.exit("synthesised speech needs the package espeakng-loader: pip install espeakng-loader")
    try:
        speech = ctypes.CDLL(espeakng_loader.get_library_path())
    except OSError as error:
        sys.exit(f"espeakng-loader's library cannot be loaded: {error}")
    sound = bytearray()

    @CALLBACK
    def heard(samples: ctypes._Pointer, count: int, events: int) -> int:
        if samples and count > 0:
            sound.extend(ctypes.string_at(samples, 2 * count))
        return 0

    data = Path(espeakng_loader.get_data_path())
    rate = speech.espeak_Initialize(SYNCHRONOUS, 0, str(data).encode(), DONT_EXIT)
    if rate <= 0:
        sys.exit(f"espeakng-loader's data in {data} cannot be read")
    speech.espeak_ng_SetRandSeed(ctypes.c_long(SEED))
    speech.espeak_SetSynthCallback(heard)
    for text, voice, speed, pitch in sentences:
        timbre = voice.partition("+")[2]  # one that does not exist is ignored by eSpeak
        if speech.espeak_SetVoiceByName(voice.encode()) or not (data / "voices" / "!v" / timbre).exists():
            sys.exit(f"espeakng-loader has no voice {voice!r}")
        speech.espeak_SetParameter(RATE, speed, 0)
        speech.espeak_SetParameter(PITCH, pitch, 0)
        sound.clear()
        said = text.encode() + b"\0"
        speech.espeak_Synth(said, ctypes.c_size_t(len(said)), 0, 0, 0, UTF8, None, None)
        sys.stdout.buffer.write(struct.pack("=ii", rate, len(sound) // 2) + sound)


if __name__ == "__main__":
    main()
