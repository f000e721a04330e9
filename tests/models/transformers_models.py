"""Tiny models of transformers' own classes, with random weights, and inputs for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 97
TOKENS = 12
IMAGE = {"image_size": 32, "patch_size": 8}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

Inputs = dict[str, Any]


def _tokens(count: int = TOKENS) -> Tensor:
    return torch.randint(3, VOCABULARY, (2, count), generator=torch.Generator().manual_seed(1))


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def _output_weights() -> nn.Parameter:
    """Weights for the last layer: those that are tied to a random embedding make a model repeat one token."""
    return nn.Parameter(torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(4)))


def _causal_inputs() -> Inputs:
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0  # padding on the left, as for generation
    return {"input_ids": tokens, "labels": tokens, "attention_mask": mask}


def _masked_inputs() -> Inputs:
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0
    return {"input_ids": tokens, "labels": tokens, "attention_mask": mask}


def _gpt2() -> tuple[nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config), _causal_inputs()


def _llama() -> tuple[nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=VOCABULARY, **SIZES, num_key_value_heads=2, max_position_embeddings=64)
    return LlamaForCausalLM(config), _causal_inputs()


def _mixtral() -> tuple[nn.Module, Inputs]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY,
        **SIZES,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        output_router_logits=True,
    )
    return MixtralForCausalLM(config), _causal_inputs()


def _bert() -> tuple[nn.Module, Inputs]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, **SIZES, **NO_DROPOUT)), _masked_inputs()


def _t5() -> tuple[nn.Module, Inputs]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    model.lm_head.weight = _output_weights()
    return model, {"input_ids": _tokens(), "labels": _tokens(7)}


def _vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(**SIZES, **NO_DROPOUT, **IMAGE, num_labels=5))
    return model, {"pixel_values": _normal(2, 3, 32, 32), "labels": torch.tensor([1, 4])}


def _whisper() -> tuple[nn.Module, Inputs]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=32,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    model.proj_out.weight = _output_weights()
    return model, {"input_features": _normal(2, 16, 40), "labels": _tokens(9)}


def _clip() -> tuple[nn.Module, Inputs]:
    from transformers import CLIPConfig, CLIPModel

    text = {"vocab_size": VOCABULARY, **SIZES, "max_position_embeddings": 16, "eos_token_id": 2}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={**SIZES, **IMAGE}, projection_dim=16))
    tokens = _tokens()
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": _normal(2, 3, 32, 32)}
    return model, {**inputs, "return_loss": True}


def _loss(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The loss that the model computes itself, and its largest output."""
    result = model(**inputs)
    output = result.logits if "logits" in result else result.logits_per_image
    return output, result.loss


def _case(build: Callable[[], tuple[nn.Module, Inputs]]) -> Callable[[], tuple[nn.Module, Inputs, Callable[..., Any]]]:
    @functools.wraps(build)
    def built() -> tuple[nn.Module, Inputs, Callable[..., Any]]:
        model, inputs = build()
        return model, inputs, _loss

    return built


MODELS = {
    "gpt2": _case(_gpt2),
    "llama": _case(_llama),
    "mixtral": _case(_mixtral),
    "bert": _case(_bert),
    "t5": _case(_t5),
    "vit": _case(_vit),
    "whisper": _case(_whisper),
    "clip": _case(_clip),
}
"""By name, a function that returns a model, its inputs, and the function `(model, inputs) -> (output, loss)`."""

GENERATORS = ("gpt2", "llama", "mixtral", "t5", "whisper")
"""The models that generate tokens."""
