"""Where the experts of a Mixture-of-Experts model live, over the shared library of Coterie.

    from coterie import eplb                the drop-in for DeepSeek's EPLB
"""

from . import eplb
from ._library import Error

__all__ = ["Error", "eplb"]
