"""The networks of MPT's tables, at full size, and small by one rule (`Scale`); its networks for sequences."""

from .beam_search import Hypothesis, beam_search
from .deepspeech2 import DeepSpeech2
from .faster_rcnn import FasterRCNN
from .gpt import GPT
from .inception import GoogLeNet, InceptionV2, InceptionV3, Outputs, loss
from .nmt import NMT
from .resnet import PreActResNet
from .scale import FULL, SMALL, Scale
from .ssd import SSD
from .vgg import VGG, AlexNet
