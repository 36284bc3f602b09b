"""The paper's models, by name; a model is a function that makes a module for a kind of example."""

from gcfed.core.model import MODELS as MODELS
from gcfed.models.cnn import cnn as cnn
from gcfed.models.exchange import LoadReport as LoadReport, load_torchvision as load_torchvision
from gcfed.models.flops import ModelCost as ModelCost, count as count
from gcfed.models.mlp import mlp as mlp
from gcfed.models.resnet import resnet18 as resnet18
from gcfed.models.vgg import vgg11 as vgg11
