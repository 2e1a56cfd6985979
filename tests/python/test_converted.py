"""What `coterie convert` writes, loaded by transformers: widened while it loads (CompressedTensorsConfig(run_compressed=False)), and as
it is by default. Each weight must be what it was but for the rounding of its kind, the same where it is kept as stored, and logits
those of `coterie eval`. Small models of each family, drawn here."""

import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

from skip import need

torch, transformers, _, safetensors = need("torch", "transformers", "compressed_tensors", "safetensors.torch")
if not hasattr(transformers, "Qwen3MoeForCausalLM") or int(transformers.__version__.split(".")[0]) < 5:
    print(f"SKIPPED: transformers {transformers.__version__} is older than 5")
    sys.exit(77)

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
transformers.utils.logging.disable_progress_bar()
PROGRAM = os.environ["COT_PROGRAM"]
SEED = int(os.environ.get("COT_SEED") or int.from_bytes(os.urandom(3), "little"))

COMMON = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, num_experts_per_tok=2, bos_token_id=None, eos_token_id=None, pad_token_id=None)
MLA = COMMON | dict(num_key_value_heads=4, moe_intermediate_size=32, intermediate_size=96, n_routed_experts=4, n_shared_experts=1,
                    first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16,
                    v_head_dim=16, n_group=1, topk_group=1)
MODELS = {
    "Mixtral": COMMON | dict(intermediate_size=32, num_local_experts=4),
    "Olmoe": COMMON | dict(intermediate_size=32, num_experts=4),
    "Qwen2Moe": COMMON | dict(intermediate_size=96, moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=4,
                              mlp_only_layers=[0]),
    "Qwen3Moe": COMMON | dict(head_dim=16, intermediate_size=96, moe_intermediate_size=32, num_experts=4, tie_word_embeddings=True),
    "DeepseekV2": MLA | dict(topk_method="greedy"),
    "DeepseekV3": MLA | dict(norm_topk_prob=True),
}
ERRORS = {"int8": 0.015, "int4": 0.12, "mxfp4": 0.16}  # of normal numbers, of their root mean square, at most
# --weights, --weights-attention, --weights-head; and what experts, other networks, attention and head become
WAYS = [(("int4", None, None), ("int4", None, "int8", None)),
        (("mxfp4", None, None), ("mxfp4", None, "int8", None)),
        (("int8", None, None), ("int8", "int8", "int8", None)),
        (("int4", "int4", None), ("int4", "int4", "int4", None)),
        (("mxfp4", "as-stored", None), ("mxfp4", "mxfp4", None, None)),
        (("int4", None, "int8"), ("int4", None, "int8", "int8")),
        (("int8", "mxfp4", "mxfp4"), ("int8", None, "mxfp4", "mxfp4")),
        (("int4", "as-stored", "int8"), ("int4", None, None, "int8"))]


def kind_of(name, kinds):
    """What a weight of transformers' names became; None: it is as it was."""
    experts, others, attention, head = kinds
    if ".experts." in name:
        return experts
    if "shared_expert_gate" in name or "mlp.gate." in name or "norm" in name or "kv_b_proj" in name or name.endswith("bias"):
        return None
    if ".mlp." in name:
        return others
    return attention if ".self_attn." in name else head if name == "lm_head.weight" else None


class Converted(unittest.TestCase):
    def setUp(self):
        print(f"COT_SEED={SEED}", flush=True)
        torch.set_num_threads(1)
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)
        self.ids = torch.randint(96, (1, 20), generator=torch.Generator().manual_seed(SEED))
        safetensors.save_file({"ids.a": self.ids[0].int()}, self.folder / "ids.safetensors")

    def tearDown(self):
        self.scratch.cleanup()

    def draw(self, name):
        """A model in bf16 of matrices that keep the size of what they multiply, and its folder."""
        torch.manual_seed(SEED)
        model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**MODELS[name])).bfloat16()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, parameter.shape[-1] ** -0.5)
        model.save_pretrained(self.folder / name)
        return model, self.folder / name

    def load(self, folder, widened, dtype=torch.float32):
        more = {"quantization_config": transformers.CompressedTensorsConfig(run_compressed=False)} if widened else {}
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                                 experts_implementation="eager", **more).eval()

    def convert(self, source, weights, attention, head):
        out = self.folder / f"{source.name}-{weights}-{attention}-{head}"
        more = [f"--weights-{word}={value}" for word, value in (("attention", attention), ("head", head)) if value]
        subprocess.run([PROGRAM, "convert", source, "-o", out, f"--weights={weights}", *more], check=True, capture_output=True)
        return out

    def expect_logits(self, model, folder, near, of=torch.max):
        """Logits of a token are off by `near` of their size at most: of each, or (of=torch.median) of half of them."""
        out = self.folder / "logits.safetensors"
        subprocess.run([PROGRAM, "eval", folder, "--tokens", self.folder / "ids.safetensors", "--precision", "fp32", "-o", out],
                       check=True, capture_output=True)
        expected = safetensors.load_file(out)["logits.a"]
        with torch.no_grad():
            logits = model(self.ids).logits[0].float()
        self.assertLess(float(of((logits - expected).norm(dim=1) / expected.norm(dim=1))), near, folder.name)

    def expect_weights(self, model, folder, source, kinds):
        found, was = model.state_dict(), source.state_dict()
        self.assertEqual(found.keys(), was.keys())
        for name, weight in was.items():
            kind, new = kind_of(name, kinds), found[name].float()
            about = f"{folder.name}: {name} as {kind}"
            self.assertEqual(new.shape, weight.shape, about)
            error = float((new - weight.float()).norm() / weight.float().norm().clamp(1e-9))
            if kind:
                self.assertLess(error, ERRORS[kind], about)
                self.assertGreater(error, ERRORS[kind] / 20, about)
            else:
                self.assertEqual(error, 0, about)

    def test_widened(self):
        for name in MODELS:
            source, folder = self.draw(name)
            tied = MODELS[name].get("tie_word_embeddings")
            for words, kinds in WAYS:
                if tied and words[2]:
                    continue
                with self.subTest(model=name, words=words):
                    out = self.convert(folder, *words)
                    model = self.load(out, True).float()
                    self.expect_weights(model, out, source, kinds)
                    if words == ("int4", None, None):  # experts times scales are rounded to bf16, whereby a token's may be others
                        self.expect_logits(model, out, 0.02, torch.median)
                    elif words[1:] == (None, None):
                        self.expect_logits(model, out, 1e-4)

    def test_as_it_is(self):
        for name in ("Qwen3Moe", "DeepseekV3"):
            _, folder = self.draw(name)
            for weights in "int4", "int8", "mxfp4":
                with self.subTest(model=name, weights=weights):
                    out = self.convert(folder, weights, None, None)
                    # it leaves experts in the type of their scales, of which the rest must be: bf16 but for int8
                    if weights == "int8":
                        self.expect_logits(self.load(out, False), out, 1e-5)
                    else:
                        self.expect_logits(self.load(out, False, torch.bfloat16), out, 0.05, torch.median)


if __name__ == "__main__":
    unittest.main()
