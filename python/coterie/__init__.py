"""Where the experts of a Mixture-of-Experts model live and where tokens go, over the shared library of Coterie.

    from coterie import eplb                    the drop-in for DeepSeek's EPLB
    coterie.read_trace(path)                    what a router did, as arrays
    coterie.place(load, topology, ...)          what `coterie place` does
    coterie.evaluate(placement, load, ...)      what a placement is worth: `coterie place --evaluate`
    coterie.group(trace, ranks, ...)            what `coterie group` does
    coterie.predict(trace, ranks, ...)          what `coterie predict` measures
    coterie.Engine(folder, ranks=4)             a model that runs: `coterie run`
"""

from . import eplb
from ._engine import Engine, Generation, Token
from ._evaluate import Figures, evaluate
from ._group import Groups, group
from ._library import Error, Notice
from ._library import version as __version__
from ._place import Placement, place
from ._predict import Evaluation, predict
from ._trace import Trace, read_trace

__all__ = ["Engine", "Error", "Evaluation", "Figures", "Generation", "Groups", "Notice", "Placement", "Token", "Trace", "eplb",
           "evaluate", "group", "place", "predict", "read_trace"]  # fmt: skip
