"""A tiny random model and random adapters for it, made on the spot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SPECIALS = ["<|pad|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role not in ('system', 'user', 'assistant', 'tool') %}{{ raise_exception('unknown role ' + message.role) }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make_tiny_model(directory: Path, *, max_context: int = 1024, seed: int = 0) -> Path:
    """Save a random Qwen3 of about 100,000 parameters with a byte tokenizer; the same seed, the same weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = byte_tokenizer(max_context)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=max_context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    # Sharper than a fresh initialisation: greedy choices are then no coin tosses between near-equal logits.
    torch.nn.init.constant_(model.model.norm.weight, 4.0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def byte_tokenizer(max_context: int) -> Any:
    """A tokenizer with a token for each byte and the three special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *SPECIALS])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        model_max_length=max_context,
        chat_template=CHAT_TEMPLATE,
    )


def make_tiny_adapter(directory: Path, model_dir: Path, *, seed: int = 1, **lora: Any) -> Path:
    """Save a LoRA adapter whose weights are random and not zero, so that it changes every logit."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear", **lora}
        base = AutoModelForCausalLM.from_pretrained(model_dir)
        model = get_peft_model(base, LoraConfig(init_lora_weights=False, **options))
    model.save_pretrained(directory)
    return directory
