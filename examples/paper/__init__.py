"""The networks of MPT's tables, at full size, and small by one rule (`Scale`); its networks for sequences."""

from .alexnet import AlexNet, alexnet
from .beam_search import Hypothesis, beam_search
from .deepspeech2 import DeepSpeech2, deepspeech2
from .faster_rcnn import FasterRCNN, faster_rcnn_vgg16
from .gpt import GPT
from .inception import GoogLeNet, InceptionV2, InceptionV3, Outputs, googlenet, inception_v2, inception_v3, loss
from .nmt import NMT
from .resnet import PreActResNet, preact_resnet50
from .scale import FULL, SMALL, Scale
from .ssd import SSD, ssd300_vgg16
from .vgg import VGG, vgg16
