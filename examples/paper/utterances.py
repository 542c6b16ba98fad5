"""Utterances to learn from, and their spectrograms: short sentences that eSpeak NG speaks."""

from __future__ import annotations

import json
import math
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

RATE = 8000  # samples per second, as on the telephone
WINDOW, STEP = 0.020, 0.010  # seconds
BANDS = int(RATE * WINDOW) // 2 + 1  # of a spectrogram: 0, 50, 100, ... 4000 Hz


class Utterance(NamedTuple):
    """frames: the spectrogram (frames, BANDS), FP32; source: the voice."""

    frames: np.ndarray
    text: str
    source: str


@dataclass(frozen=True)
class Corpus:
    """Utterances to learn from, and others that are held out; alphabet: the characters of all texts."""

    name: str
    training: list[Utterance]
    held_out: list[Utterance]
    alphabet: str


def spectrogram(sound: np.ndarray) -> np.ndarray:
    """The logarithm of the power in windows of 20 ms, one in 10 ms: (frames, BANDS), FP32, of samples at RATE.

    Normalised to mean 0 and standard deviation 1 over all of it, so that loudness does not matter.
    """
    from scipy import signal

    size, step = int(RATE * WINDOW), int(RATE * STEP)
    _, _, power = signal.spectrogram(sound, RATE, "hann", size, size - step, detrend=False)
    level = np.log(power.T + 1e-6 * power.mean())  # 60 dB below the mean nothing is heard
    return ((level - level.mean()) / level.std()).astype(np.float32)


def warped(frames: np.ndarray, factor: float) -> np.ndarray:
    """The spectrogram (frames, BANDS) as of a longer or shorter vocal tract: what is heard at f was at f `factor`
    (Jaitly & Hinton, 2013). So few voices stand for many.
    """
    at = np.minimum(np.arange(BANDS, dtype=np.float32) * np.float32(factor), BANDS - 1)
    low = np.floor(at)
    below, above = frames[:, low.astype(int)], frames[:, np.ceil(at).astype(int)]
    return below + (at - low) * (above - below)


class Language(NamedTuple):
    """A language: eSpeak's dialects, patterns of sentences, and the words that replace each {kind}."""

    name: str
    dialects: tuple[str, ...]
    patterns: tuple[str, ...]
    words: dict[str, str]

    def sentence(self, random: np.random.Generator) -> str:
        """A random one."""
        pattern = self.patterns[random.integers(len(self.patterns))]
        return re.sub(r"{(\w+)}", lambda kind: random.choice(self.words[kind[1]].split()), pattern)


_NINE = "一 二 三 四 五 六 七 八 九"
LANGUAGES = {
    "english": Language(
        "English",
        ("en", "en-us", "en-029", "en-gb-scotland", "en-gb-x-rp"),
        (
            "{digit} {digit} {digit}",
            "{digit} {digit} {digit} {digit}",
            "{tens} {unit} of them",
            "{weekday} the {ordinal} of {month}",
            "{month} the {ordinal}",
            "{minutes} {past} {hour}",
            "half past {hour}",
            "please {ask} {name}",
            "{name} and {name}",
            "meet {name} on {weekday}",
            "call {name} at {hour}",
            "turn {switch} the {device}",
            "{door} the {thing}",
        ),
        {
            "digit": "zero one two three four five six seven eight nine",
            "tens": "twenty thirty forty fifty sixty seventy eighty ninety",
            "unit": "one two three four five six seven eight nine",
            "ordinal": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
            "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth",
            "weekday": "monday tuesday wednesday thursday friday saturday sunday",
            "month": "january february march april may june july august september october november december",
            "hour": "one two three four five six seven eight nine ten eleven twelve",
            "minutes": "five ten twenty quarter",
            "past": "past to",
            "ask": "ask call tell see visit help",
            "name": "anna peter maria david susan thomas laura martin helen robert julia michael sarah daniel emma "
            "george alice frank victoria william",
            "switch": "on off",
            "device": "light radio heating television music kettle alarm",
            "door": "open close lock",
            "thing": "door window garage gate cupboard drawer",
        },
    ),
    "mandarin": Language(
        "Mandarin",
        ("cmn",),
        (
            "{digit}{digit}{digit}",
            "{digit}{digit}{digit}{digit}",
            "{month}月{day}日",
            "星期{weekday}{part}{hour}点",
            "{part}{hour}点半",
            "{name}和{name}",
            "请给{name}打电话",
            "{name}去{city}",
            "从{city}到{city}",
            "{month}月{name}来{city}",
            "{door}{thing}",
            "请{name}{door}{thing}",
        ),
        {
            "digit": f"零 {_NINE}",
            "month": f"{_NINE} 十 十一 十二",
            "day": f"{_NINE} 十 十一 十二 十三 十四 十五 十六 十七 十八 十九 二十 二十一 二十二 二十三 二十四 二十五",
            "weekday": "一 二 三 四 五 六",
            "hour": "一 两 三 四 五 六 七 八 九 十 十一 十二",
            "part": "上午 下午 晚上",
            "name": "王明 李丽 张伟 刘芳 陈静 黄强",
            "city": "北京 上海 广州 成都 西安",
            "door": "打开 关上",
            "thing": "门 窗 灯 电视 空调",
        },
    ),
}

# eSpeak's "variants", the timbres of people. Whispers, croaks, robots and doubles of these are left out.
VOICES = (
    "f1 f2 f4 f5 m1 m2 m3 m5 m6 m7 Alex Alicia Andrea Annie belinda boris Denis ed gustave iven Jacky john linda max "
    "michel miguel norbert pablo paul quincy rob sandro steph travis victor zac"
)
HELD_OUT = "f3 m4 Andy Lee shelby robert grandma kaukovalta"
SPEED, PITCH, NOISE = (140, 220), (30, 70), (10, 40)  # words per minute, eSpeak's measure, decibels below the speech


def synthesised(language: str, count: int, held_out: int, seed: int = 0) -> Corpus:
    """`count` utterances by VOICES, and `held_out` others, of other sentences, by the voices HELD_OUT.

    Speed, pitch and white noise are random. The same arguments give the same sounds. RuntimeError where eSpeak is
    missing or fails.
    """
    from scipy import signal

    spoken, random = LANGUAGES[language], np.random.default_rng(seed)
    texts: list[str] = []
    while len(texts) < held_out + count:
        text = spoken.sentence(random)
        # nobody says every fifth in training, so that every pattern and word is heard in others
        texts += [text] if (zlib.crc32(text.encode()) % 5 == 0) == (len(texts) < held_out) else []
    orders = []
    for i, text in enumerate(texts):
        voice = f"{random.choice(spoken.dialects)}+{random.choice((HELD_OUT if i < held_out else VOICES).split())}"
        orders.append((text, voice, *(int(random.integers(*limits)) for limits in (SPEED, PITCH))))
    said = []
    for (text, voice, *_), (rate, sound) in zip(orders, speak(orders)):
        common = math.gcd(rate, RATE)
        sound = signal.resample_poly(sound.astype(np.float32), RATE // common, rate // common)
        noise = sound.std() * 10 ** (-random.uniform(*NOISE) / 20)
        said.append(Utterance(spectrogram(sound + random.normal(0, noise, len(sound))), text, voice))
    name = f"{spoken.name}, synthesised"
    return Corpus(name, said[held_out:], said[:held_out], "".join(sorted(set("".join(texts)))))


def speak(orders: list[tuple]) -> list[tuple[int, np.ndarray]]:
    """(samples per second, int16 samples) for each (text, voice, words per minute, pitch), by espeak.py."""
    program = [sys.executable, str(Path(__file__).with_name("espeak.py"))]
    done = subprocess.run(program, input=json.dumps(orders).encode(), capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode().strip() or f"espeak.py ended with {done.returncode}")
    sounds, at = [], 0
    for _ in orders:
        rate, count = struct.unpack_from("=ii", done.stdout, at)
        sounds.append((rate, np.frombuffer(done.stdout, np.int16, count, at + 8)))
        at += 8 + 2 * count
    return sounds
