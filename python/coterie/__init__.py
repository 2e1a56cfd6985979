"""Where the experts of a Mixture-of-Experts model live, over the shared library of Coterie.

    from coterie import eplb                the drop-in for DeepSeek's EPLB
    coterie.place(load, topology, ...)      what `coterie place` does
"""

from . import eplb
from ._library import Error
from ._place import Placement, place

__all__ = ["Error", "Placement", "eplb", "place"]
