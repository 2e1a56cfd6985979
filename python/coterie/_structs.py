"""The structs of the public headers that the package uses, field for field; tests/python checks the layout."""

from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object

Doubles, Ints, Bytes = POINTER(c_double), POINTER(c_int32), POINTER(c_uint8)
Longs, Shorts, Counts, Floats, Chars = POINTER(c_int64), POINTER(c_uint16), POINTER(c_uint32), POINTER(c_float), POINTER(c_char)
Say = CFUNCTYPE(None, c_void_p, c_char_p)
Progress = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)
Proceed = CFUNCTYPE(c_bool, c_void_p, c_int64, c_int64)
Loading = CFUNCTYPE(None, c_void_p, c_size_t, c_size_t)
FIGURES, METHODS = 16, 6  # COT_FIGURES, COT_PREDICT_METHODS


class LoadCounts(Structure):
    c_name = "cot_load_counts"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("n_sources", c_int32),
        ("sources_known", c_bool),
        ("from_engine", c_bool),
        ("top_k", c_int32),
        ("hidden", c_int32),
        ("format", c_char_p),
        ("layers", Ints),
        ("tokens", Doubles),
        ("model_hash", c_uint64),
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
        ("model_hash", c_uint64),
    ]


class ExpertMapOptions(Structure):
    c_name = "cot_expert_map_options"
    _fields_ = [
        ("size", c_size_t),
        ("format", c_char_p),
        ("ranks", c_int32),
        ("first_layer", c_int32),
        ("n_layers", c_int32),
        ("moe_layer", Ints),
        ("moe_layers", c_int32),
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
    _fields_ = [("size", c_size_t), ("hosts", c_char_p), ("nvlink", c_char_p), ("ranks", c_int32), ("say", Say),
                ("context", c_void_p)]


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
        ("model_hash", c_uint64),
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
    _fields_ = [("name", c_char_p), ("text", c_char_p), ("replicas", c_bool), ("limits", c_bool), ("soft", c_bool)]


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


class Trace(Structure):
    c_name = "cot_trace"
    _fields_ = [
        ("kind", c_int),
        ("model", c_char_p),
        ("model_hash", c_uint64),
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("top_k", c_int32),
        ("hidden", c_int32),
        ("layers", Ints),
        ("n_tokens", c_int64),
        ("token_ids", Ints),
        ("n_sequences", c_int64),
        ("sequence_offsets", Longs),
        ("experts_u8", Bytes),
        ("experts_u16", Shorts),
        ("weights", Shorts),
        ("counts", Counts),
        ("n_strings", c_int64),
        ("string_offsets", Longs),
        ("strings", Chars),
        ("owner", c_void_p),
    ]


class TraceImportOptions(Structure):
    c_name = "cot_trace_import_options"
    _fields_ = [
        ("size", c_size_t),
        ("from", c_char_p),
        ("model", c_char_p),
        ("n_experts", c_int32),
        ("top_k", c_int32),
        ("hidden", c_int32),
        ("say", Say),
        ("progress", Progress),
        ("context", c_void_p),
    ]


class Locality(Structure):
    c_name = "cot_locality"
    _fields_ = [("tokens", c_int64), ("activations", c_int64), ("local", c_int64), ("remote_ranks", c_int64)]


class Balancedness(Structure):
    c_name = "cot_balancedness"
    _fields_ = [("sglang", c_double), ("vllm", c_double), ("vllm_layers", c_double), ("tensorrt_llm", c_double)]


class PlaceMeasureOptions(Structure):
    c_name = "cot_place_measure_options"
    _fields_ = [
        ("size", c_size_t),
        ("load", POINTER(LoadCounts)),
        ("costs", POINTER(CostsOptions)),
        ("topology", POINTER(Topology)),
        ("trace", POINTER(Trace)),
    ]


class PlaceFigures(Structure):
    c_name = "cot_place_figures"
    _fields_ = [
        ("value", PlaceValue),
        ("balancedness", Balancedness),
        ("peak", c_double),
        ("token_mean", c_double),
        ("token_std", c_double),
        ("lar", c_double),
        ("n_links", c_int64),
        ("link_max", c_double),
        ("link_p99", c_double),
        ("link_mean", c_double),
    ]


class Affinities(Structure):
    c_name = "cot_affinities"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("n_tokens", c_int64),
        ("token_ids", Ints),
        ("positions", Longs),
        ("layer", c_void_p),
    ]


class GroupOptions(Structure):
    c_name = "cot_group_options"
    _fields_ = [
        ("size", c_size_t),
        ("method", c_char_p),
        ("ranks", c_int32),
        ("token_balance", c_double),
        ("expert_load", c_double),
        ("seed", c_uint64),
        ("bonus", Floats),
        ("start", Ints),
    ]


class GroupSolveOptions(Structure):
    c_name = "cot_group_solve_options"
    _fields_ = [
        ("size", c_size_t),
        ("group", GroupOptions),
        ("iterations", c_int64),
        ("threads", c_int32),
        ("nodes", c_int32),
        ("cost_in", c_double),
        ("cost_out", c_double),
        ("shrink", c_double),
        ("joint", c_bool),
        ("stay_weight", c_double),
        ("distance", Doubles),
        ("move_weight", c_double),
        ("proceed", Proceed),
        ("context", c_void_p),
    ]


class LayerGroups(Structure):
    c_name = "cot_layer_groups"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("n_ranks", c_int32),
        ("n_tokens", c_int64),
        ("expert_rank", Ints),
        ("token_rank", Ints),
    ]


class Grouping(Structure):
    c_name = "cot_grouping"
    _fields_ = [
        ("expert_rank", Ints),
        ("token_rank", Ints),
        ("local", c_uint64),
        ("total", c_uint64),
        ("bonus", c_double),
        ("bound", c_double),
        ("token_peak", c_double),
        ("expert_peak", c_double),
        ("expert_peak_bound", c_double),
        ("token_limit", c_double),
        ("feasible", c_bool),
        ("proven", c_bool),
        ("iterations", c_int64),
    ]


class GroupSolution(Structure):
    c_name = "cot_group_solution"
    _fields_ = [
        ("groups", LayerGroups),
        ("layer", POINTER(Grouping)),
        ("iterations", c_int64),
        ("lar", c_double),
        ("lar_bound", c_double),
        ("token_peak", c_double),
        ("expert_peak", c_double),
        ("stay", c_double),
        ("stay_before", c_double),
        ("seated", c_bool),
        ("distance", c_double),
        ("distance_before", c_double),
        ("cost", c_double),
    ]


class PredictorOptions(Structure):
    c_name = "cot_predictor_options"
    _fields_ = [
        ("size", c_size_t),
        ("ranks", c_int32),
        ("expert_rank", Ints),
        ("token_ids", Ints),
        ("token_rank", Ints),
        ("n_tokens", c_int64),
        ("order", c_int32),
        ("chosen", Bytes),
        ("embedding", c_void_p),
        ("counts_only", c_bool),
        ("seed", c_uint64),
        ("threads", c_int32),
    ]


class PredictorInfo(Structure):
    c_name = "cot_predictor_info"
    _fields_ = [
        ("model", c_char_p),
        ("model_hash", c_uint64),
        ("n_layers", c_int32),
        ("n_experts", c_int32),
        ("top_k", c_int32),
        ("n_ranks", c_int32),
        ("order", c_int32),
        ("layers", Ints),
        ("expert_rank", Ints),
        ("trace_hash", c_uint64),
        ("seed", c_uint64),
        ("chosen", Bytes),
        ("n_sequences", c_int64),
        ("token_ids", Ints),
        ("token_frequency", Shorts),
        ("n_tokens", c_int64),
        ("token_strings", Chars),
        ("token_string_offsets", Longs),
        ("has", c_bool * METHODS),
        ("table_bytes", c_uint64 * METHODS),
    ]


class PredictEvaluateOptions(Structure):
    c_name = "cot_predict_evaluate_options"
    _fields_ = [
        ("size", c_size_t),
        ("chosen", Bytes),
        ("step_tokens", c_int64),
        ("resamples", c_int32),
        ("threads", c_int32),
        ("seed", c_uint64),
    ]


class PredictEvaluation(Structure):
    c_name = "cot_predict_evaluation"
    _fields_ = [
        ("n_layers", c_int32),
        ("n_tokens", c_int64),
        ("layer", Doubles),
        ("all", c_double * FIGURES),
        ("low", c_double * FIGURES),
        ("high", c_double * FIGURES),
    ]


class ModelInfo(Structure):
    c_name = "cot_model_info"
    _fields_ = [
        ("architecture", c_char * 64),
        ("vocab", c_int64),
        ("hidden", c_int64),
        ("layers", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("experts", c_int64),
        ("top_k", c_int64),
        ("context_tokens", c_int64),
        ("parameters", c_int64),
        ("active_parameters", c_int64),
        ("moe_layers", c_int64),
        ("moe_layer", Ints),
        ("context_field", c_char_p),
    ]


# Made by tools/make_options from engine_options.def:
class _EngineOptionsGroup(Structure):
    _fields_ = [
        ("ranks", c_int),
        ("threads", c_int),
        ("fabric", c_char_p),
        ("timeout_ns", c_int64),
        ("isa", c_char_p),
    ]


class _EngineOptionsWeights(Structure):
    _fields_ = [
        ("precision", c_char_p),
        ("networks", c_char_p),
        ("attention", c_char_p),
        ("head", c_char_p),
    ]


class _EngineOptionsExperts(Structure):
    _fields_ = [
        ("op", c_char_p),
        ("sms_reserve", c_int),
        ("combine", c_char_p),
        ("a2a", c_char_p),
        ("dedup", c_char_p),
        ("payload", c_char_p),
        ("placement", POINTER(ExpertMap)),
        ("placement_name", c_char_p),
        ("tables", c_char_p),
        ("routing", c_void_p),
        ("slots", c_int32),
        ("spare_slots", c_int32),
        ("movable", c_bool),
        ("migration_share", c_double),
        ("migration_bandwidth", c_int64),
        ("rebalance", c_char_p),
        ("distances", c_void_p),
        ("rebalance_interval", c_char_p),
        ("moves_a_cycle", c_int64),
        ("layers", c_int32),
    ]


class _EngineOptionsAttention(Structure):
    _fields_ = [
        ("mode", c_char_p),
        ("pipeline", c_char_p),
        ("predict", c_char_p),
        ("collective", c_char_p),
    ]


class _EngineOptionsBatch(Structure):
    _fields_ = [
        ("sequences", c_int),
        ("step_tokens", c_int64),
        ("tbt_ns", c_int64),
        ("max_wait_steps", c_int64),
        ("schedule", c_char_p),
        ("home_by", c_char_p),
        ("signature_tables", c_char_p),
    ]


class _EngineOptionsMemory(Structure):
    _fields_ = [
        ("sequence_tokens", c_int64),
        ("kv_tokens", c_int64),
        ("block_tokens", c_int64),
        ("snapshots", c_int64),
        ("kv_bytes", c_size_t),
        ("total_bytes", c_size_t),
    ]


class _EngineOptionsWatch(Structure):
    _fields_ = [
        ("capture_routing", c_bool),
        ("popularity_half_life", c_int64),
        ("popularity_half_life_ns", c_int64),
        ("count_exchanges", c_bool),
        ("progress", Loading),
        ("progress_context", c_void_p),
    ]


class EngineOptions(Structure):
    c_name = "cot_engine_options"
    _fields_ = [
        ("size", c_size_t),
        ("version", c_int),
        ("group", _EngineOptionsGroup),
        ("weights", _EngineOptionsWeights),
        ("experts", _EngineOptionsExperts),
        ("attention", _EngineOptionsAttention),
        ("batch", _EngineOptionsBatch),
        ("memory", _EngineOptionsMemory),
        ("watch", _EngineOptionsWatch),
    ]


# end of what is made


class EngineInfo(Structure):
    c_name = "cot_engine_info"
    _fields_ = [
        ("architecture", c_char_p),
        ("isa", c_char_p),
        ("vocab", c_int64),
        ("hidden", c_int64),
        ("layers", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("experts", c_int64),
        ("top_k", c_int64),
        ("context_tokens", c_int64),
        ("moe_layers", c_int64),
        ("moe_layer", Ints),
        ("model_hash", c_uint64),
        ("weight_bytes", c_size_t),
        ("ranks", c_int),
        ("threads", c_int),
        ("precision", c_char_p),
        ("payload", c_char_p),
        ("op", c_char_p),
        ("combine", c_char_p),
        ("attention", c_char_p),
        ("a2a", c_char_p),
        ("dedup", c_char_p),
        ("pipeline", c_char_p),
        ("predict", c_char_p),
        ("collective", c_char_p),
        ("weights", c_char_p),
        ("weights_attention", c_char_p),
        ("weights_head", c_char_p),
        ("eos", Ints),
        ("eos_count", c_size_t),
        ("kv_homes", c_int),
        ("block_tokens", c_int64),
        ("sequences", c_int),
        ("movable", c_bool),
        ("expert_slots", c_int32),
        ("transit_places", c_int32),
    ]


class Sampling(Structure):
    c_name = "cot_sampling"
    _fields_ = [
        ("size", c_size_t),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("presence_penalty", c_double),
        ("frequency_penalty", c_double),
        ("bias_tokens", Ints),
        ("bias", c_void_p),
        ("bias_count", c_size_t),
        ("stop_tokens", Ints),
        ("stop_count", c_size_t),
        ("min_tokens", c_int64),
        ("seed", c_uint64),
        ("stream", c_uint32),
        ("max_tokens", c_int64),
        ("ignore_eos", c_bool),
        ("temperature_last", c_bool),
    ]


class Request(Structure):
    c_name = "cot_request"
    _fields_ = [
        ("prompt", Ints),
        ("prompt_tokens", c_int64),
        ("forced", Ints),
        ("forced_tokens", c_int64),
        ("all_logits", c_bool),
        ("sampling", Sampling),
        ("output_tokens", c_int64),
        ("logprobs", c_int32),
        ("logprob_tokens", Ints),
        ("logprob_count", c_size_t),
        ("cache_salt", c_void_p),
        ("cache_salt_bytes", c_size_t),
        ("constraint", c_void_p),
        ("recorded", c_int32),
        ("after", c_uint64),
    ]


class TextOptions(Structure):
    c_name = "cot_text_options"
    _fields_ = [
        ("size", c_size_t),
        ("stops", POINTER(c_char_p)),
        ("stop_count", c_size_t),
        ("include_stop", c_bool),
        ("keep_special_tokens", c_bool),
        ("mark_added_tokens", c_bool),
        ("stop_after_tokens", c_int64),
    ]


class EventToken(Structure):
    """A token's id as a value that is never false, whatever the id."""

    _fields_ = [("id", c_int32)]


OnToken = CFUNCTYPE(c_bool, py_object, c_uint64, EventToken)
OnFinish = CFUNCTYPE(None, py_object, c_char, c_int)  # of the request's number one byte, which equals no number


class Events(Structure):
    c_name = "cot_events"
    _fields_ = [
        ("context", c_void_p),
        ("on_admit", c_void_p),
        ("on_sampled", c_void_p),
        ("on_token", OnToken),
        ("on_logits", c_void_p),
        ("on_routing", c_void_p),
        ("on_finish", OnFinish),
    ]


ALL = [LoadCounts, LoadOptions, ExpertMap, ExpertMapOptions, Topology, TopologyOptions, Metric, Costs, CostsOptions,
       PlaceOptions, PlaceMethod, PlaceValue, ReplanOptions, Transfer, Trace, TraceImportOptions, Locality, Balancedness,
       PlaceMeasureOptions, PlaceFigures, Affinities, GroupOptions, GroupSolveOptions, LayerGroups, Grouping,
       GroupSolution, PredictorOptions, PredictorInfo, PredictEvaluateOptions, PredictEvaluation,
       ModelInfo, EngineOptions, EngineInfo, Sampling, Request, TextOptions, Events]  # fmt: skip
