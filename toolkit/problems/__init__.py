"""What is learned: a model, a loss and data under one name.

This layer knows kernels, models and data. It knows nothing of strategies, places or runtimes.
"""

from toolkit.problems.digits import digits
from toolkit.problems.images import images
from toolkit.problems.logistic import logistic
from toolkit.problems.quadratic import quadratic

__all__ = ["digits", "images", "logistic", "quadratic"]
