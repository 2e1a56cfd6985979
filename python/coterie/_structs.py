"""The structs of coterie/load.h, placement.h, topology.h and place.h, field for field; tests/python checks the layout."""

from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_void_p

Doubles, Ints, Bytes = POINTER(c_double), POINTER(c_int32), POINTER(c_uint8)
Say = CFUNCTYPE(None, c_void_p, c_char_p)


class LoadCounts(Structure):
    c_name = "cot_load_counts"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("n_sources", c_int32),
        ("sources_known", c_bool),
        ("from_engine", c_bool),
        ("top_k", c_int32),
        ("format", c_char_p),
        ("layers", Ints),
        ("tokens", Doubles),
    ]


class LoadOptions(Structure):
    c_name = "cot_load_options"
    _fields_ = [("size", c_size_t), ("first_layer", c_int32), ("top_k", c_int32), ("say", Say), ("context", c_void_p)]


class ExpertMap(Structure):
    c_name = "cot_expert_map"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("n_ranks", c_int32),
        ("slots_per_rank", c_int32),
        ("layers", Ints),
        ("expert", Ints),
        ("dense", Bytes),
    ]


class ExpertMapOptions(Structure):
    c_name = "cot_expert_map_options"
    _fields_ = [
        ("size", c_size_t),
        ("format", c_char_p),
        ("ranks", c_int32),
        ("first_layer", c_int32),
        ("n_layers", c_int32),
        ("say", Say),
        ("context", c_void_p),
    ]


class Topology(Structure):
    c_name = "cot_topology"
    _fields_ = [
        ("name", c_char_p),
        ("n_ranks", c_int32),
        ("n_vertices", c_int32),
        ("n_links", c_int64),
        ("ranks_forward", c_bool),
        ("has_costs", c_bool),
        ("measured", c_bool),
        ("links", c_void_p),
        ("labels", c_void_p),
        ("host", Ints),
        ("n_hosts", c_int32),
        ("owner", c_void_p),
    ]


class TopologyOptions(Structure):
    c_name = "cot_topology_options"
    _fields_ = [("size", c_size_t), ("hosts", c_char_p), ("ranks", c_int32), ("say", Say), ("context", c_void_p)]


class Metric(Structure):
    c_name = "cot_metric"
    _fields_ = [("cost", c_bool), ("bytes", c_double)]


class Costs(Structure):
    c_name = "cot_costs"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("n_ranks", c_int32),
        ("row", Ints),
        ("layers", Ints),
        ("home", Ints),
        ("load", Doubles),
        ("cost", Doubles),
        ("pair", Doubles),
        ("round_trip", Doubles),
        ("sent", Doubles),
        ("indifferent", c_bool),
    ]


class CostsOptions(Structure):
    c_name = "cot_costs_options"
    _fields_ = [
        ("size", c_size_t),
        ("attention", c_int),
        ("metric", Metric),
        ("dispatch", c_int),
        ("dispatch_weights", Doubles),
        ("collect_weights", Doubles),
        ("cost", Doubles),
        ("n_ranks", c_int32),
    ]


class PlaceOptions(Structure):
    c_name = "cot_place_options"
    _fields_ = [
        ("size", c_size_t),
        ("method", c_char_p),
        ("c_layer", Ints),
        ("c_exp", Ints),
        ("slots", c_int32),
        ("max_load", c_double),
        ("groups", c_int32),
        ("nodes", c_int32),
        ("dispatch", c_int),
    ]


class PlaceMethod(Structure):
    c_name = "cot_place_method"
    _fields_ = [("name", c_char_p), ("text", c_char_p), ("replicas", c_bool)]


class PlaceValue(Structure):
    c_name = "cot_place_value"
    _fields_ = [
        ("objective", c_double),
        ("activations", c_double),
        ("dual", c_double),
        ("own_objective", c_double),
        ("own_dual", c_double),
        ("peak_load", Doubles),
        ("peak_bound", Doubles),
        ("rank_load", Doubles),
        ("n_layers", c_int32),
        ("n_ranks", c_int32),
    ]


class ReplanOptions(Structure):
    c_name = "cot_replan_options"
    _fields_ = [("size", c_size_t), ("peak", Doubles), ("max_moves", c_int64), ("move_cost", c_double),
                ("slots_per_rank", c_int32), ("fresh", POINTER(ExpertMap))]  # fmt: skip


class Transfer(Structure):
    c_name = "cot_transfer"
    _fields_ = [("layer", c_int32), ("expert", c_int32), ("from", c_int32), ("to", c_int32), ("round", c_int32)]


ALL = [LoadCounts, LoadOptions, ExpertMap, ExpertMapOptions, Topology, TopologyOptions, Metric, Costs, CostsOptions,
       PlaceOptions, PlaceMethod, PlaceValue, ReplanOptions, Transfer]  # fmt: skip
