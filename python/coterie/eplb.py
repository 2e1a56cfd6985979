"""DeepSeek's expert-parallel load balancer: `from coterie import eplb` where `import eplb` stood."""

import ctypes
import sys

import numpy

from ._library import call, host, pointer, whole

__all__ = ["rebalance_experts"]


def rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus):
    """Replicates the experts of each layer into `num_replicas` slots and packs them onto `num_gpus` GPUs.

    weight: [layers, experts] loads, 0 or more; a torch tensor or whatever numpy.asarray takes. num_replicas is a multiple
    of num_gpus. Where num_nodes divides num_groups, groups of experts stay together on a node (hierarchical policy), else
    groups play no part (global policy).

    Returns (physical_to_logical [layers, num_replicas], logical_to_physical [layers, experts, most replicas], -1 where
    there are no more, replicas [layers, experts]), int64, as torch tensors on the CPU or numpy arrays as `weight` was one.
    ValueError for sizes that do not divide and loads that are negative or no numbers; TypeError for sizes that are not whole.
    """
    torch = sys.modules.get("torch")
    tensor = torch is not None and isinstance(weight, torch.Tensor)
    loads = numpy.ascontiguousarray(host(weight, "weight"), dtype=numpy.float64)
    if loads.ndim != 2:
        raise ValueError(f"weight has {loads.ndim} dimensions, expected layers and experts")
    layers, experts = loads.shape
    slots = whole(num_replicas, "num_replicas")
    parts = [whole(n, name) for n, name in ((num_groups, "num_groups"), (num_nodes, "num_nodes"), (num_gpus, "num_gpus"))]
    p2l = numpy.empty((layers, slots), numpy.int64)
    count = numpy.empty((layers, experts), numpy.int64)

    def rebalance(l2p, most):
        sizes = (layers, experts, slots, *parts, most)
        arrays = (p2l, l2p, count, loads)
        call("cot_eplb_rebalance", *map(pointer, arrays), (ctypes.c_int64 * len(sizes))(*sizes))

    most = slots - experts + 1  # always enough
    if most * count.size > 1 << 20:  # but not worth the memory: count first
        rebalance(None, 0)
        most = int(count.max())
    l2p = numpy.empty((layers, experts, max(most, 0)), numpy.int64)
    rebalance(l2p, most)
    l2p = numpy.ascontiguousarray(l2p[:, :, : int(count.max(initial=0))])
    maps = (p2l, l2p, count)
    return tuple(torch.from_numpy(a) for a in maps) if tensor else maps
