"""Models as flax modules, each a composition of named blocks so that it can be split. They know flax and kernels."""

from toolkit.models.cnn import CNN
from toolkit.models.linear import Linear
from toolkit.models.mlp import MLP
from toolkit.models.redshift_cnn import RedshiftCNN
from toolkit.models.resnet import ResNet

__all__ = ["CNN", "MLP", "Linear", "RedshiftCNN", "ResNet"]
