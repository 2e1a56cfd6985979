"""Checkpoints in few bits, drawn in the hub's layouts: what `eval` computes of one is what it computes of the copy that is
widened here, and of the one that `convert` makes of it; one that is damaged, or whose config.json lies, is refused in a
line."""

import copy
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
SEED = int(os.environ.get("COT_SEED") or random.SystemRandom().getrandbits(32))
DRAWS = int(os.environ.get("COT_DRAWS") or 6)
H, I, E, V, HEAD = 64, 64, 2, 32, 32
E2M1 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def e4m3(code):
    size = math.ldexp(8 + (code & 7), (code >> 3 & 15) - 10) if code & 0x78 else math.ldexp(code & 7, -9)
    return -size if code & 128 else size


def floats(kind, numbers):
    """Bytes of numbers that are exact in the type."""
    if kind == "BF16":
        return b"".join(struct.pack("<f", x)[2:] for x in numbers)
    return struct.pack(f"<{len(numbers)}{'e' if kind == 'F16' else 'f'}", *numbers)


def words(bits, rows, order=None):
    """Rows of codes, `32 / bits` to a word, as I32."""
    per, out = 32 // bits, []
    for row in rows:
        for at in range(0, len(row), per):
            out.append(sum(code << bits * (order[i] if order else i) for i, code in enumerate(row[at:at + per])))
    return struct.pack(f"<{len(out)}I", *out)


def lessened(bits, data):
    """Words, 1 less in each place: a place of 0 borrows from the next."""
    ones = 0xFFFFFFFF // ((1 << bits) - 1)
    return b"".join(struct.pack("<I", word - ones & 0xFFFFFFFF) for word, in struct.iter_unpack("<I", data))


def transposed(matrix):
    return [list(column) for column in zip(*matrix)]


class Matrix:
    """Codes [out][in], scales and zero points for every rows x columns of it, and what they mean."""

    def __init__(self, draw, out, width, bits, rows, columns, asymmetric, exact):
        self.out, self.width, self.rows, self.columns = out, width, rows, columns
        self.down, self.across = -(-out // rows), -(-width // columns)
        self.codes = [[draw.randrange(1 << bits) for _ in range(width)] for _ in range(out)]
        self.scales = [[(1 + draw.randrange(128) / 128) * 2.0 ** (draw.randrange(3) - exact) for _ in range(self.across)]
                       for _ in range(self.down)]
        middle = 1 << bits - 1
        self.zeros = [[draw.randrange(1 << bits) if asymmetric else middle for _ in range(self.across)]
                      for _ in range(self.down)]

    def wide(self, value):
        """F32 [out][in]; value(code, zero point): an element before its scale."""
        numbers = []
        for r, row in enumerate(self.codes):
            scales, zeros = self.scales[r // self.rows], self.zeros[r // self.rows]
            numbers += [value(code, zeros[c // self.columns]) * scales[c // self.columns] for c, code in enumerate(row)]
        return struct.pack(f"<{len(numbers)}f", *numbers)

    def flat(self, what):
        return [x for row in what for x in row]


class Model:
    """Tensors as they are stored, the same widened, and config.json. A kind of storage fills in a matrix's tensors and tells of
    it in quantization_config. all_fp8: of MLA, every matrix in FP8, gate and embedding too."""

    def __init__(self, seed, all_fp8=False):
        self.draw, self.all_fp8 = random.Random(seed), all_fp8
        self.tensors, self.wide, self.packed, self.kinds = {}, {}, [], {}
        self.family = "deepseek" if all_fp8 else self.draw.choice(("qwen", "mixtral", "olmoe", "deepseek"))
        prefix = "model.layers.0."
        experts = prefix + ("block_sparse_moe" if self.family == "mixtral" else "mlp")
        names = ("w1", "w3", "w2") if self.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        kv = H if self.family == "olmoe" else HEAD
        vectors = {prefix + "input_layernorm": H, prefix + "post_attention_layernorm": H, "model.norm": H}
        if self.family == "deepseek":
            vectors |= {prefix + "self_attn.kv_a_layernorm": H}
        elif self.family != "mixtral":
            vectors |= {prefix + "self_attn.q_norm": HEAD if self.family == "qwen" else H,
                        prefix + "self_attn.k_norm": HEAD if self.family == "qwen" else H}
        for name, width in vectors.items():
            self.plain(name, [width], 1)
        self.plain("model.embed_tokens", [V, H], 0)
        self.plain(experts + ".gate", [E, H], 0)
        self.seldom = {experts + ".gate": (E, H), "model.embed_tokens": (V, H)}
        attention = {x: (H if x in "qo" else kv, H) for x in "qkvo"}
        if self.family == "deepseek":  # two heads of 16 and 16 that turn, and 32
            attention = {"q": (H, H), "kv_a": (H + 16, H), "kv_b": (2 * (16 + 32), H), "o": (H, H)}
        self.matrices = {prefix + f"self_attn.{x}_proj{'_with_mqa' * (x == 'kv_a')}": shape for x, shape in attention.items()}
        for e in range(E):
            for name, shape in zip(names, ((I, H), (I, H), (H, I))):
                self.matrices[f"{experts}.experts.{e}.{name}"] = shape
        self.matrices["lm_head"] = V, H
        self.config = {"vocab_size": V, "hidden_size": H, "num_hidden_layers": 1, "num_attention_heads": H // HEAD,
                       "num_key_value_heads": kv // HEAD, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
                       "num_experts_per_tok": 2}
        self.config |= {"qwen": {"architectures": ["Qwen3MoeForCausalLM"], "head_dim": HEAD, "num_experts": E,
                                 "moe_intermediate_size": I},
                        "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": E, "intermediate_size": I},
                        "olmoe": {"architectures": ["OlmoeForCausalLM"], "num_experts": E, "intermediate_size": I},
                        "deepseek": {"architectures": ["DeepseekV2ForCausalLM"], "n_routed_experts": E,
                                     "moe_intermediate_size": I, "n_shared_experts": None, "q_lora_rank": None,
                                     "kv_lora_rank": H, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
                                     "v_head_dim": 32}}[self.family]
        self.method = "fp8" if all_fp8 else self.draw.choice(("gptq", "awq", "fp8", "modelopt", "compressed", "compressed",
                                                                    "compressed"))
        self.told = getattr(self, self.method)()
        self.config["quantization_config"] = self.told

    def plain(self, name, shape, middle):
        count = math.prod(shape)
        numbers = [middle + self.draw.randrange(-64, 65) / 128 for _ in range(count)]
        self.tensors[name + ".weight"] = self.wide[name + ".weight"] = "BF16", shape, floats("BF16", numbers)

    def leave(self, some):
        """The matrices that are quantised; `some` others are left plain."""
        if self.all_fp8:
            self.matrices |= self.seldom
            return list(self.matrices), []
        left = set(self.draw.sample(sorted(self.matrices), some))
        for name in sorted(left):
            self.plain(name, list(self.matrices[name]), 0)
        return [name for name in self.matrices if name not in left], sorted(left)

    def put(self, name, end, kind, shape, data):
        self.tensors[f"{name}.{end}"] = kind, shape, data

    def widened(self, name, matrix, value):
        self.wide[name + ".weight"] = "F32", [matrix.out, matrix.width], matrix.wide(value)
        self.packed.append(name)

    # ---- GPTQ and AWQ ----

    def gptq(self):
        bits, group = self.draw.choice((4, 8)), self.draw.choice((16, 32, 48, 64, 96, -1)) # the last group may be a part
        ordered = self.draw.random() < 0.5
        symmetric, v2 = self.draw.random() < 0.5, self.draw.random() < 0.5
        names, _ = self.leave(self.draw.randrange(3))
        for name in names:
            out, width = self.matrices[name]
            m = Matrix(self.draw, out, width, bits, 1, group if group > 0 else width, not symmetric, bits + 2)
            per, zeros = 32 // bits, words(bits, transposed(m.zeros))
            self.put(name, "qweight", "I32", [width // per, out],
                     struct.pack(f"<{width // per * out}I", *(sum(m.codes[r][c + i] << bits * i for i in range(per))
                                                              for c in range(0, width, per) for r in range(out))))
            self.put(name, "qzeros", "I32", [m.across, out // per], zeros if v2 else lessened(bits, zeros))
            kind = self.draw.choice(("F16", "BF16"))
            self.put(name, "scales", kind, [m.across, out], floats(kind, m.flat(transposed(m.scales))))
            if (ordered and 0 < group < width) or self.draw.random() < 0.8:
                self.put(name, "g_idx", "I32", [width], struct.pack(f"<{width}i", *(c // m.columns for c in range(width))))
            self.widened(name, m, lambda code, zero: code - zero)
        told = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": ordered,
                "damp_percent": 0.01, "true_sequential": True, "lm_head": "lm_head" in names,
                "modules_in_block_to_quantize": [["self_attn.k_proj"]],
                "dynamic": self.draw.choice((None, {}, {"-:.*gate$": {}, "+:.*up_proj": {"bits": bits}}))}
        key = self.draw.choice(("checkpoint_format", "format"))
        return told | ({key: "gptq_v2"} if v2 else self.draw.choice(({}, {key: "gptq"})))

    def awq(self):
        group, order = self.draw.choice((16, 32, 64)), (0, 4, 1, 5, 2, 6, 3, 7)
        names, left = self.leave(self.draw.randrange(3))
        for name in names:
            out, width = self.matrices[name]
            m = Matrix(self.draw, out, width, 4, 1, group, True, 6)
            self.put(name, "qweight", "I32", [width, out // 8], words(4, transposed(m.codes), order))
            self.put(name, "qzeros", "I32", [m.across, out // 8], words(4, transposed(m.zeros), order))
            self.put(name, "scales", "F16", [m.across, out], floats("F16", m.flat(transposed(m.scales))))
            self.widened(name, m, lambda code, zero: code - zero)
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
                "modules_to_not_convert": left} | self.draw.choice(({}, {"version": "gemm"}, {"version": "GEMM"},
                                                                    {"format": "gemm"}))

    # ---- E4M3 ----

    def put_e4m3(self, name, span, scale, end, more=()):
        """span: rows and columns of a scale, None where there is one of the tensor."""
        out, width = self.matrices[name]
        m = Matrix(self.draw, out, width, 8, *(span or (out, width)), False, 8)
        m.codes = [[code - (code & 127 == 127) for code in row] for row in m.codes]
        shape = [m.down, m.across] if span else self.draw.choice(([], [1]))
        if scale == "F8_E8M0":
            m.scales = [[2.0 ** self.draw.randrange(-9, -6) for _ in row] for row in m.scales]
            data = bytes(127 + int(math.log2(x)) for x in m.flat(m.scales))
        else:
            data = floats(scale, m.flat(m.scales))
        self.put(name, "weight", "F8_E4M3", [out, width], bytes(m.flat(m.codes)))
        self.put(name, end, scale, [m.down] if span and span[1] >= width and "flat" in more else shape, data)
        self.widened(name, m, lambda code, _: e4m3(code))

    def fp8(self):
        way = self.draw.choice(("block", "tensor", "channel"))
        names, left = self.leave(self.draw.randrange(3))
        block = [self.draw.choice((16, 32, 48, 128)), self.draw.choice((32, 64, 128))]
        scheme = self.draw.choice(("dynamic", "static"))
        scale = self.draw.choice(("F32", "BF16", "F8_E8M0"))
        end = "weight_scale_inv" if way == "block" else self.draw.choice(("weight_scale", "weight_scale_inv"))
        for name in names:
            out, width = self.matrices[name]
            span = {"block": block, "tensor": None, "channel": (1, width)}[way]
            if span:
                span = min(span[0], out), min(span[1], width)
            self.put_e4m3(name, span, scale, end, self.draw.choice(((), ("flat",))) if way == "channel" else ())
            if scheme == "static":
                self.put(name, "input_scale", "F32", [], struct.pack("<f", 0.5))
        return {"quant_method": "fp8", "activation_scheme": scheme, "modules_to_not_convert": left,
                "weight_block_size": block if way == "block" else None} | self.draw.choice(({}, {"fmt": "e4m3"}))

    # ---- compressed-tensors ----

    def put_scales(self, name, m, scale, one):
        flat = m.across == 1 and self.draw.random() < 0.3
        self.put(name, "weight_scale", scale, [1] if one else [m.out] if flat else [m.out, m.across],
                 floats(scale, m.flat(m.scales)[:1] if one else m.flat(m.scales)))

    def put_compressed(self, name, w):
        out, width = self.matrices[name]
        scale = self.draw.choice(("F32", "BF16", "F16"))
        one, bits = w["strategy"] == "tensor", w["num_bits"]
        if w["type"] == "float" and bits == 8:
            rows, columns = {"tensor": (out, width), "channel": (1, width)}.get(w["strategy"]) or w["block_structure"]
            self.put_e4m3(name, None if one else (min(rows, out), min(columns, width)), scale.replace("F16", "F32")
                          if scale == "F16" else scale, "weight_scale")
            return
        group = min(w["group_size"] or width, width)
        m = Matrix(self.draw, out, width, bits, out if one else 1, group, not w["symmetric"], bits + 2)
        if group == 16 and w["type"] == "float":
            self.put_nvfp4(name, m, "weight_packed", "weight_global_scale", True)
            return
        if w["type"] == "float":
            m.scales = [[2.0 ** self.draw.randrange(-5, -2) for _ in row] for row in m.scales]
            codes = m.flat(m.codes)
            self.put(name, "weight_packed", "U8", [out, width // 2],
                     bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2)))
            self.put(name, "weight_scale", "U8", [out, m.across], bytes(127 + int(math.log2(x)) for x in m.flat(m.scales)))
            self.widened(name, m, lambda code, _: E2M1[code])
            return
        middle = 1 << bits - 1
        if w["in_bytes"]:
            self.put(name, "weight", "I8", [out, width], struct.pack(f"<{out * width}b", *(c - middle for c in m.flat(m.codes))))
        else:
            self.put(name, "weight_packed", "I32", [out, width * bits // 32], words(bits, m.codes))
            self.put(name, "weight_shape", "I64", [2], struct.pack("<2q", out, width))
        if w["actorder"] == "group" or w["actorder"] and self.draw.random() < 0.5:
            self.put(name, "weight_g_idx", "I32", [width], struct.pack(f"<{width}i", *(c // group for c in range(width))))
        self.put_scales(name, m, scale, one)
        if not w["symmetric"] or w["zeros_though_symmetric"]:
            if w["in_bytes"] or one or self.draw.random() < 0.3:
                numbers = [z - middle for z in (m.flat(m.zeros)[:1] if one else m.flat(m.zeros))]
                self.put(name, "weight_zero_point", "I8", [1] if one else [out, m.across], struct.pack(f"<{len(numbers)}b", *numbers))
            else:
                per = 32 // bits
                packed = [words(bits, [column]) for column in transposed(m.zeros)]
                self.put(name, "weight_zero_point", "I32", [out // per, m.across],
                         b"".join(column[4 * i:4 * i + 4] for i in range(out // per) for column in packed))
        self.widened(name, m, lambda code, zero: code - zero)

    def put_nvfp4(self, name, m, packed, end, divides):
        """A scale in E4M3 for each 16, and one of the matrix, a power of two: every order of products gives the same bits."""
        scales = [self.draw.choice((0, 1, 7, *range(0x28, 0x40))) for _ in range(m.out * m.across)]
        of_all, codes = 2.0 ** self.draw.randrange(-9, -5), m.flat(m.codes)
        m.scales = [[e4m3(scale) * of_all for scale in scales[r * m.across:(r + 1) * m.across]] for r in range(m.out)]
        self.put(name, packed, "U8", [m.out, m.width // 2],
                 bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2)))
        self.put(name, "weight_scale", "F8_E4M3", [m.out, m.across], bytes(scales))
        self.put(name, end, "F32", [1] if divides else self.draw.choice(([], [1])),
                 struct.pack("<f", 1 / of_all if divides else of_all))
        self.widened(name, m, lambda code, _: E2M1[code])

    def modelopt(self):
        """NVFP4, some matrices in FP8 with a scale of the tensor, whose quant_algo is mixed then."""
        names, left = self.leave(self.draw.randrange(3))
        mixed = self.draw.random() < 0.5
        for name in names:
            if mixed and self.draw.random() < 0.4:
                self.put_e4m3(name, None, "F32", "weight_scale")
            else:
                m = Matrix(self.draw, *self.matrices[name], 4, 1, 16, False, 0)
                self.put_nvfp4(name, m, "weight", "weight_scale_2", False)
            if self.draw.random() < 0.5:
                self.put(name, "input_scale", "F32", [], struct.pack("<f", 0.5))
        return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION" if mixed else self.draw.choice(("NVFP4", "nvfp4")),
                "ignore": left + ["*.gate"], "producer": {"name": "modelopt"}}

    def scheme(self):
        kind = self.draw.choice(("packed", "packed", "bytes", "e4m3", "e2m1", "e2m1", "e2m1 by 16"))
        strategy = self.draw.choice({"packed": ("group", "group", "channel", "tensor"), "bytes": ("channel", "tensor", "group"),
                                     "e4m3": ("channel", "tensor", "block"), "e2m1": ("group",),
                                     "e2m1 by 16": ("tensor_group",)}[kind])
        w = {"num_bits": {"packed": self.draw.choice((4, 8)), "e2m1": 4, "e2m1 by 16": 4}.get(kind, 8),
             "type": "float" if kind[0] == "e" else "int",
             "symmetric": kind[0] == "e" or self.draw.random() < 0.5, "strategy": strategy,
             "group_size": (32 if kind == "e2m1" else self.draw.choice((16, 32, 64, 128))) if strategy == "group" else
             16 if strategy == "tensor_group" else None,
             "block_structure": [16, 32] if strategy == "block" else None, "dynamic": False, "observer": "minmax",
             "actorder": self.draw.choice((None, "static", "weight", "group")) if strategy == "group" else None,
             "in_bytes": kind == "bytes", "zeros_though_symmetric": self.draw.random() < 0.3}
        layout = {"packed": "pack-quantized", "bytes": self.draw.choice(("int-quantized", "naive-quantized")),
                  "e4m3": self.draw.choice(("float-quantized", "naive-quantized")), "e2m1": "mxfp4-pack-quantized",
                  "e2m1 by 16": "nvfp4-pack-quantized"}[kind]
        return w, layout

    def compressed(self):
        names, left = self.leave(self.draw.randrange(3))
        schemes = [self.scheme() for _ in range(self.draw.choice((1, 2, 3)))]
        exact = self.draw.sample(names, 2)
        targets = [["Linear"], [self.draw.choice((r"re:.*self_attn\..*_proj", "re:.*experts.0.*"))], exact]
        groups, layouts = {}, set()
        for i, (w, layout) in enumerate(schemes):
            args = {k: v for k, v in w.items() if k not in ("in_bytes", "zeros_though_symmetric")}
            if args["block_structure"] and self.draw.random() < 0.5:
                args["block_structure"] = "16x32"
            groups[f"group_{i}"] = {"targets": targets[i], "weights": args, "output_activations": None,
                                    "input_activations": None, "format": layout}
            layouts.add(layout)
        if self.draw.random() < 0.3:
            groups["kv_cache"] = {"targets": ["re:.*k_proj", "re:.*v_proj"], "weights": None,
                                  "output_activations": {"num_bits": 8, "type": "float"}}
            self.put("model.layers.0.self_attn.k_proj", "output_scale", "F32", [1], struct.pack("<f", 1))
        for name in names:
            which = 2 if name in exact else 1 if (".experts.0." in name if "experts" in targets[1][0] else
                                                  ".self_attn." in name) else 0
            which = which if which < len(schemes) else 1 if which == 2 and len(schemes) == 2 and (
                ".experts.0." in name if "experts" in targets[1][0] else ".self_attn." in name) else 0
            self.kinds[name] = f"group_{which}"
            self.put_compressed(name, schemes[which][0])
            if self.draw.random() < 0.2:
                self.put(name, "input_scale", "F32", [1], struct.pack("<f", 0.5))
        told = {"quant_method": "compressed-tensors", "config_groups": groups, "quantization_status": "compressed",
                "ignore": [self.draw.choice((name, "re:" + name.replace(".", r"\.") + "$")) for name in left] +
                ["re:.*gate$"], "global_compression_ratio": self.draw.choice((None, 1.5)), "kv_cache_scheme":
                self.draw.choice((None, {"num_bits": 8, "type": "float", "strategy": "tensor"})), "version": "0.13.0"}
        if self.draw.random() < 0.7:
            told["format"] = layouts.pop() if len(layouts) == 1 else "mixed-precision"
        return told | self.draw.choice(({}, {"sparsity_config": {}}, {"sparsity_config": {"format": "dense"}},
                                        {"transform_config": {}}))

    # ---- files ----

    @staticmethod
    def write(folder, config, tensors):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        header, at = {}, 0
        for name, (kind, shape, data) in tensors.items():
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text +
                                                   b"".join(data for _, _, data in tensors.values()))


def replaced(data, at, new):
    return data[:at] + new + data[at + len(new):]


class Damage:
    """One thing that is wrong, and words of the line that must say so."""

    def __init__(self, model, draw):
        self.config, self.tensors = copy.deepcopy(model.config), dict(model.tensors)
        self.told, self.draw, self.model = self.config["quantization_config"], draw, model
        self.name = draw.choice(model.packed)
        common = [self.no_method, self.no_scales, self.scales_in_whole_numbers, self.codes_of_another_type,
                  self.codes_too_few, self.scale_not_finite, self.scale_of_zero]
        of_method = {"gptq": [self.other_bits, self.out_of_order, self.of_marlin, self.other_group, self.reordered,
                              self.some_otherwise],
                     "awq": [self.other_bits, self.no_zeros_told, self.of_gemv, self.other_group],
                     "fp8": [self.other_fmt, self.not_a_number],
                     "modelopt": [self.other_algorithm, self.not_16, self.excluded, self.scaled_before, self.not_a_number],
                     "compressed": [self.three_bits, self.lie_of_bits, self.lie_of_type, self.lie_of_strategy,
                                    self.lie_of_group, self.lie_of_zeros, self.ignored, self.other_format, self.other_strategy,
                                    self.sparse, self.actorder, self.reordered_group, self.bad_pattern, self.symmetric_lie, self.other_shape]}[model.method]
        self.how = draw.choice(common + 2 * of_method)
        self.words = self.how()

    def end(self, *ends):
        return next(f"{self.name}.{e}" for e in ends if f"{self.name}.{e}" in self.tensors)

    def scales(self):
        return self.end("scales", "weight_scale", "weight_scale_inv")

    def codes(self):
        return self.end("qweight", "weight_packed", "weight")

    def group(self):
        return self.told["config_groups"][self.model.kinds[self.name]]

    def no_method(self):
        self.told["quant_method"] = "bitsandbytes"
        return "quantisation 'bitsandbytes' is not supported"

    def no_scales(self):
        name = self.scales()
        del self.tensors[name]
        return name.rsplit("_inv")[0] if self.model.method == "fp8" else name

    def scales_in_whole_numbers(self):
        name = self.scales()
        kind, shape, data = self.tensors[name]
        self.tensors[name] = "I16" if kind in ("F16", "BF16") else "I32" if kind == "F32" else "I8", shape, data
        return name

    def codes_of_another_type(self):
        name = self.codes()
        kind, shape, data = self.tensors[name]
        self.tensors[name] = {"I32": "F32", "I8": "U8", "U8": "I8", "F8_E4M3": "F8_E5M2"}[kind], shape, data
        return name

    def codes_too_few(self):
        name = self.codes()
        kind, shape, data = self.tensors[name]
        self.tensors[name] = kind, [shape[0] - 1, shape[1]], data[:len(data) // shape[0] * (shape[0] - 1)]
        return name

    def spoil_scale(self, numbers):
        name = self.scales()
        for end in "weight_global_scale", "weight_scale_2":
            name = f"{self.name}.{end}" if f"{self.name}.{end}" in self.tensors else name
        kind, shape, data = self.tensors[name]
        if kind not in numbers:
            return self.no_scales()
        at = self.draw.randrange(math.prod(shape)) * len(numbers[kind])
        self.tensors[name] = kind, shape, replaced(data, at, numbers[kind])
        return self.codes()

    def scale_not_finite(self):
        return self.spoil_scale({"F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f", "F16": b"\0\x7e", "U8": b"\xff",
                                 "F8_E8M0": b"\xff"})

    def scale_of_zero(self):
        return self.spoil_scale({"F32": bytes(4), "BF16": bytes(2), "F16": bytes(2)})

    def other_algorithm(self):
        self.told["quant_algo"] = self.draw.choice(("NVFP4_AWQ", "W4A8_NVFP4_FP8", "INT4_AWQ", "W4A16_AWQ"))
        return f"modelopt quant_algo '{self.told['quant_algo']}' is not supported"

    def not_16(self):
        self.told |= {"quant_algo": "NVFP4", "group_size": self.draw.choice((32, 8, 128))}
        return f"NVFP4 in groups of {self.told['group_size']} "

    def excluded(self):
        self.told["ignore"].append(self.draw.choice((self.name, self.name[:-3] + "*", "*" + self.name[3:], self.name[:-1] + "?")))
        return "is quantised, config.json says 'ignore'"

    def scaled_before(self):
        if self.tensors[self.codes()][0] != "U8":
            return self.other_algorithm()
        name = f"{self.name}.pre_quant_scale"
        self.tensors[name] = "BF16", [self.model.matrices[self.name][1]], bytes(2 * self.model.matrices[self.name][1])
        return f"is multiplied by '{name}', which is not supported"

    def other_bits(self):
        self.told["bits"] = self.draw.choice((2, 3, 16))
        return f"weights of {self.told['bits']} bits are not supported"

    def out_of_order(self):
        if not 0 < self.told["group_size"] < self.model.matrices[self.name][1]:
            return self.reordered()
        self.told["desc_act"] = True
        self.tensors.pop(f"{self.name}.g_idx", None)
        return "desc_act, and there is no g_idx"

    def some_otherwise(self):
        key, value = self.draw.choice((("bits", 12 - self.told["bits"]), ("group_size", 8), ("sym", not self.told["sym"])))
        self.told["dynamic"] = {"-:.*gate$": {}, "+:.*layers.0.*": {key: value}}
        return f"gptq with {key} of its own"

    def of_marlin(self):
        self.told["checkpoint_format"] = "marlin"
        return "'marlin' is not supported"

    def of_gemv(self):
        version = self.draw.choice(("gemv", "gemv_fast", "marlin", "ipex", "exllama"))
        self.told[self.draw.choice(("version", "format"))] = version
        return f"'{version}' is not supported"

    def no_zeros_told(self):
        self.told["zero_point"] = False
        return "zero points"

    def other_group(self):
        columns = self.told["group_size"]
        self.told["group_size"] = self.draw.choice((24, 40)) if columns < 1 or columns > 63 else self.draw.choice((columns // 2, 8, -1))
        return "tensor '"

    def reordered_group(self):
        """Of compressed-tensors, in words or bytes."""
        w, name = self.group()["weights"], f"{self.name}.weight_g_idx"
        if w["strategy"] != "group" or w["type"] == "float":
            return self.lie_of_bits()
        width = self.model.matrices[self.name][1]
        numbers = [c // w["group_size"] for c in range(width)]
        numbers[self.draw.randrange(width)] += 1
        self.tensors[name] = "I32", [width], struct.pack(f"<{width}i", *numbers)
        return "do not lie in order"

    def reordered(self):
        numbers = list(range(self.model.matrices[self.name][1]))
        columns = self.told["group_size"] if self.told["group_size"] > 0 else len(numbers)
        data = [c // columns for c in numbers]
        data[self.draw.choice(numbers)] += 1
        self.tensors[f"{self.name}.g_idx"] = "I32", [len(numbers)], struct.pack(f"<{len(numbers)}i", *data)
        return "do not lie in order"

    def other_fmt(self):
        self.told["fmt"] = "e5m2"
        return "'e5m2' is not supported"

    def not_a_number(self):
        kind, shape, data = self.tensors[self.codes()]
        if kind == "U8":
            name = self.scales()
            kind, shape, data = self.tensors[name]
            self.tensors[name] = kind, shape, replaced(data, self.draw.randrange(len(data)), b"\xff")
            return self.codes()
        self.tensors[self.codes()] = kind, shape, replaced(data, self.draw.randrange(len(data)), b"\x7f")
        return self.codes()

    def three_bits(self):
        self.group()["weights"]["num_bits"] = self.draw.choice((2, 3, 5, 6))
        return "bits are not supported"

    def lie(self, key, value):
        """Of the group that a matrix is of; the line may name another matrix of that group."""
        self.group()["weights"][key] = value
        blocks = self.group()["weights"]["block_structure"] and key != "num_bits" # without them FP8 may tell too little
        return "tensor '" if blocks else "config.json says"

    def lie_of_bits(self):
        return self.lie("num_bits", 12 - self.group()["weights"]["num_bits"])

    def lie_of_type(self):
        return self.lie("type", "int" if self.group()["weights"]["type"] == "float" else "float")

    def lie_of_strategy(self):
        w = self.group()["weights"]
        told = self.draw.choice([s for s in ("tensor", "channel") if s != w["strategy"]])
        one = (w["group_size"] or 0) >= 64 and w["strategy"] == "group"
        return self.lie("strategy", "tensor" if one or w["strategy"] == "channel" else told)

    def other_shape(self):
        name = f"{self.name}.weight_shape"
        if name not in self.tensors:
            return self.lie_of_bits()
        kind, shape, data = self.tensors[name]
        self.tensors[name] = kind, shape, replaced(data, 8 * self.draw.randrange(2), b"\x07")
        return f"tensor '{self.codes()}' is of "

    def lie_of_group(self):
        w = self.group()["weights"]
        if w["strategy"] == "tensor_group":
            return self.lie("group_size", 32)
        if w["strategy"] != "group":
            w["strategy"] = "group"
            return self.lie("group_size", 16)
        return self.lie("group_size", 8 if w["group_size"] > 16 else 32)

    def lie_of_zeros(self):
        if f"{self.name}.weight_zero_point" in self.tensors or self.group()["weights"]["type"] == "float":
            return self.lie_of_bits()
        return self.lie("symmetric", False)

    def ignored(self):
        self.told["ignore"].append(self.draw.choice((self.name, "re:" + self.name)))
        return f"tensor '{self.codes()}' is quantised, config.json says 'ignore'"

    def other_format(self):
        self.draw.choice((self.told, self.group()))["format"] = "marlin-24"
        return "marlin-24"

    def other_strategy(self):
        self.group()["weights"]["strategy"] = "token"
        return "token"

    def sparse(self):
        self.told["sparsity_config"] = {"format": "sparse-24-bitmask"}
        return "sparse-24-bitmask"

    def actorder(self):
        w = self.group()["weights"]
        if w["strategy"] != "group" or w["type"] == "float" or w["group_size"] >= self.model.matrices[self.name][1]:
            return self.lie_of_bits()
        w["actorder"] = self.draw.choice(("group", "dynamic", True))
        self.tensors.pop(f"{self.name}.weight_g_idx", None)
        return "actorder, and there is no weight_g_idx"

    def bad_pattern(self):
        self.told["ignore"].append("re:(model")
        return "(model"

    def symmetric_lie(self):
        groups = [g["weights"] for g in self.told["config_groups"].values() if g["weights"]]
        name = f"{self.name}.weight_zero_point"
        if name not in self.tensors or any(not w["symmetric"] for w in groups):
            return self.lie_of_type()
        kind, shape, data = self.tensors[name]
        self.tensors[name] = kind, shape, replaced(data, 0, bytes([data[0] ^ 1]))
        return "a zero point that is not the middle"


class Stored(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"COT_SEED={SEED}", flush=True)
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        header = json.dumps({"ids.a": {"dtype": "I32", "shape": [7], "data_offsets": [0, 28]}}).encode()
        cls.ids = cls.folder / "ids.safetensors"
        cls.ids.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<7i", 3, 1, 4, 15, 9, 2, 6))

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def eval(self, folder, *words, precision="fp32"):
        return subprocess.run([PROGRAM, "eval", folder, "--tokens", self.ids, "-o", self.folder / "out.safetensors",
                               "--precision", precision, *words], capture_output=True, text=True)

    def logits(self, folder, *words, precision="fp32"):
        done = self.eval(folder, *words, precision=precision)
        notes = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
        self.assertEqual((done.returncode, notes), (0, []), notes)
        data = (self.folder / "out.safetensors").read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        first, last = json.loads(data[8:end])["logits.a"]["data_offsets"]
        return struct.unpack(f"<{7 * V}f", data[end + first:end + last])

    def test_read(self):
        for i in range(DRAWS):
            with self.subTest(draw=i):
                model = Model(SEED + i)
                about = json.dumps(model.told)
                Model.write(self.folder / "stored", model.config, model.tensors)
                Model.write(self.folder / "wide", {k: v for k, v in model.config.items() if k != "quantization_config"}, model.wide)
                expected = self.logits(self.folder / "wide")
                most = max(map(abs, expected))
                widened = self.logits(self.folder / "stored", "--weights", "fp32", "--weights-attention", "fp32",
                                      "--weights-head", "fp32")
                self.assertEqual(widened, expected, about)
                kept = self.logits(self.folder / "stored", "--ranks", str(1 + i % 2))
                self.assertLess(max(abs(x - y) for x, y in zip(kept, expected)), 2e-5 * (1 + most), about)

    def test_converted(self):
        """What is in few bits and is not rounded stays what it was."""
        model, source, out = Model(SEED, all_fp8=True), self.folder / "source", self.folder / "converted"
        Model.write(source, model.config, model.tensors)
        for kind in "int4", "int8", "mxfp4":
            subprocess.run([PROGRAM, "convert", source, "-o", out, "--weights", kind, "--weights-head", "int8"], check=True,
                           capture_output=True)
            for precision in "fp32", "bf16", "int8":
                expected = self.logits(source, "--weights", kind, "--weights-attention", "int8", "--weights-head", "int8",
                                       precision=precision)
                self.assertEqual(self.logits(out, precision=precision), expected, f"{kind}, {precision}")
            shutil.rmtree(out)

    def test_refused(self):
        for i in range(2 * DRAWS):
            with self.subTest(draw=i):
                damage = Damage(Model(SEED + i), random.Random(SEED - i))
                about = f"{damage.how.__name__} of {damage.name}: {damage.words}; {json.dumps(damage.told)}"
                Model.write(self.folder / "damaged", damage.config, damage.tensors)
                done = self.eval(self.folder / "damaged")
                lines = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
                self.assertEqual((done.returncode, len(lines)), (1, 1), f"{about}\n{done.stderr}")
                self.assertIn(damage.words, lines[0], about)


if __name__ == "__main__":
    unittest.main()
