"""Options of training and serving by upstream's names.

Every class is a TypedDict with the keys that scripts use; keys that are not listed are carried along to the
backend as they are. Which options a backend honours, its documentation tells; one that it cannot honour it
refuses.
"""

from __future__ import annotations

from typing import Literal

# pydantic reads TypedDict classes of the typing module only from Python 3.12 on.
from typing_extensions import TypedDict


class TrainConfig(TypedDict, total=False):
    """Options of one train call.

    Attributes:
        advantage_balance: From -1.0 (train on negative advantages only) over 0.0 (both alike, the default) to
            1.0 (positive advantages only).
        allow_training_without_logprobs: Train on turns that came without logprobs, taking them as sampled from
            the current policy. Otherwise they are not trained on.
        epsilon: How far the probability ratio may fall below 1 before it is clipped.
        epsilon_high: How far it may rise above 1; None takes `epsilon`.
        importance_sampling_level: What a probability ratio is taken over: each token, the whole sequence (mean
            of its log-ratios), or an arithmetic or geometric mean of the two.
        kimi_k2_tau: Weight of a pull towards the sampling policy: the advantage of a token falls by tau times
            its log-ratio. None is off.
        kl_penalty_coef: Weight of a KL penalty towards a reference, folded into the advantages; 0.0 is off.
        kl_penalty_reference_step: Checkpoint step of that reference; the base model where it is absent.
        kl_ref_adapter_path: Directory of a LoRA adapter to use as that reference.
        logprob_calculation_chunk_size: Tokens whose logits are held in memory at once.
        mask_prob_ratio: Leave tokens outside the clip range out of the loss instead of clipping their ratio.
        max_negative_advantage_importance_sampling_weight: Upper bound of the probability ratio; the local backend
            applies it where the advantage is negative.
        num_trajectories_learning_rate_multiplier_power: Multiply the learning rate with the number of
            trajectories to this power; 0.0 is off.
        plot_tensors: Save plots of the packed batch, for debugging.
        ppo: Use PPO's clipped objective. Otherwise the ratio is a clipped weight without gradient (CISPO).
        precalculate_logprobs: Compute the old logprobs with the trainer before the step, in place of the
            sampled ones.
        scale_learning_rate_by_reward_std_dev: Scale the learning rate with the trend of the standard deviation
            of rewards within groups.
        scale_rewards: Divide advantages by the standard deviation of the group's rewards; True by default.
        truncated_importance_sampling: Upper bound of a weight that corrects for sampling and training
            computing different probabilities; None is off. The local backend wants `precalculate_logprobs` with it.
    """

    advantage_balance: float
    allow_training_without_logprobs: bool
    epsilon: float
    epsilon_high: float | None
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"]
    kimi_k2_tau: float | None
    kl_penalty_coef: float
    kl_penalty_reference_step: int | None
    kl_ref_adapter_path: str | None
    logprob_calculation_chunk_size: int
    mask_prob_ratio: bool
    max_negative_advantage_importance_sampling_weight: float
    num_trajectories_learning_rate_multiplier_power: float
    plot_tensors: bool
    ppo: bool
    precalculate_logprobs: bool
    scale_learning_rate_by_reward_std_dev: bool
    scale_rewards: bool
    truncated_importance_sampling: float | None


class TrainSFTConfig(TypedDict, total=False):
    """Options of one call of supervised fine-tuning; none has a name of its own yet."""


class InitArgs(TypedDict, total=False):
    """How the base model is loaded for training.

    Attributes:
        model_name: Hub id or directory that replaces the model's `base_model`.
        max_seq_length: Longest sequence in tokens.
        dtype: Number format of the weights.
        load_in_4bit: Hold the weights in 4 bits.
        load_in_8bit: Hold the weights in 8 bits.
        gpu_memory_utilization: Share of the GPU's memory for the inference engine.
        max_lora_rank: Highest LoRA rank that the inference engine accepts.
        random_state: Seed.
        token: Access token of the hub.
        trust_remote_code: Run code that the model's repository brings.
        revision: Revision of the model's repository.
    """

    model_name: str
    max_seq_length: int
    dtype: str | None
    load_in_4bit: bool
    load_in_8bit: bool
    gpu_memory_utilization: float
    max_lora_rank: int
    random_state: int
    token: str | None
    trust_remote_code: bool
    revision: str | None


class EngineArgs(TypedDict, total=False):
    """Arguments of the inference engine, by vLLM's names.

    Attributes:
        model: Hub id or directory of the base model.
        served_model_name: Name or names the base model answers under.
        tokenizer: Hub id or directory of the tokenizer.
        dtype: Number format of the weights.
        seed: Seed of sampling.
        max_model_len: Longest sequence in tokens, prompt included.
        max_num_seqs: Sequences that are generated at once.
        max_loras: LoRA adapters that take part in one batch.
        max_lora_rank: Highest LoRA rank.
        tensor_parallel_size: GPUs that share one model.
        gpu_memory_utilization: Share of the GPU's memory.
        enforce_eager: Do without CUDA graphs.
        enable_prefix_caching: Reuse the cache of common prefixes.
        enable_sleep_mode: Free the GPU's memory while training.
        quantization: Method of quantization.
        trust_remote_code: Run code that the model's repository brings.
        generation_config: Where defaults of sampling come from.
    """

    model: str
    served_model_name: str | list[str] | None
    tokenizer: str | None
    dtype: str
    seed: int
    max_model_len: int | None
    max_num_seqs: int | None
    max_loras: int
    max_lora_rank: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    enforce_eager: bool | None
    enable_prefix_caching: bool | None
    enable_sleep_mode: bool
    quantization: str | None
    trust_remote_code: bool
    generation_config: str | None


class PeftArgs(TypedDict, total=False):
    """The LoRA adapter that is trained.

    Attributes:
        r: Rank.
        lora_alpha: Scale; the adapter's output is multiplied by alpha / r.
        lora_dropout: Share of inputs dropped in training.
        target_modules: Names of the modules that get an adapter.
        bias: Which biases are trained.
        use_rslora: Scale by alpha / sqrt(r).
        modules_to_save: Further modules that are trained whole.
        random_state: Seed of the adapter's first weights.
        use_gradient_checkpointing: Compute activations again instead of holding them.
    """

    r: int
    lora_alpha: int
    lora_dropout: float
    target_modules: list[str] | str
    bias: str
    use_rslora: bool
    modules_to_save: list[str] | None
    random_state: int
    use_gradient_checkpointing: str | bool


class TrainerArgs(TypedDict, total=False):
    """The optimizer and its schedule, by the names of transformers' TrainingArguments.

    Attributes:
        learning_rate: Overridden by the learning rate of each train call.
        weight_decay: Weight decay.
        adam_beta1: Decay of the first moment.
        adam_beta2: Decay of the second moment.
        adam_epsilon: Added to the root of the second moment.
        max_grad_norm: Norm that gradients are clipped to.
        optim: Name of the optimizer.
        lr_scheduler_type: Name of the schedule.
        gradient_accumulation_steps: Batches a gradient step is summed over.
        per_device_train_batch_size: Sequences in a batch.
        num_generations: Rollouts in a group.
        seed: Seed.
        bf16: Train in bfloat16.
        fp16: Train in float16.
    """

    learning_rate: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    optim: str
    lr_scheduler_type: str
    gradient_accumulation_steps: int
    per_device_train_batch_size: int
    num_generations: int | None
    seed: int
    bf16: bool
    fp16: bool


class TinkerTrainingClientArgs(TypedDict, total=False):
    """The LoRA adapter of a Tinker training client.

    Attributes:
        rank: Rank.
        seed: Seed of the adapter's first weights.
        train_mlp: Give the feed-forward layers an adapter.
        train_attn: Give the attention layers an adapter.
        train_unembed: Give the output layer an adapter.
        user_metadata: Labels that Tinker keeps with the run.
    """

    rank: int
    seed: int | None
    train_mlp: bool
    train_attn: bool
    train_unembed: bool
    user_metadata: dict[str, str] | None


class TinkerArgs(TypedDict, total=False):
    """How a Tinker adapter renders and trains.

    Attributes:
        renderer_name: Name of the renderer that turns messages into tokens.
        training_client_args: The training client.
    """

    renderer_name: str
    training_client_args: TinkerTrainingClientArgs


TinkerNativeArgs = TinkerArgs  # by the name of upstream's second Tinker adapter


class InternalModelConfig(TypedDict, total=False):
    """How a backend loads, serves and trains one model.

    Attributes:
        init_args: How the base model is loaded.
        engine_args: The inference engine.
        peft_args: The LoRA adapter.
        trainer_args: The optimizer.
        tinker_args: Arguments of the Tinker adapter.
        tinker_native_args: The same, by the name of upstream's second Tinker adapter.
        trainer_gpu_ids: GPUs that train, where they are not shared with inference.
        inference_gpu_ids: GPUs that serve.
    """

    init_args: InitArgs
    engine_args: EngineArgs
    peft_args: PeftArgs
    trainer_args: TrainerArgs
    tinker_args: TinkerArgs | None
    tinker_native_args: TinkerNativeArgs | None
    trainer_gpu_ids: list[int]
    inference_gpu_ids: list[int]


class ServerArgs(TypedDict, total=False):
    """The OpenAI-compatible server in front of the inference engine, by vLLM's names.

    Attributes:
        host: Address to listen at.
        port: Port to listen at; a free one where it is absent.
        api_key: Key that requests must carry; a random one where it is absent.
        uvicorn_log_level: How much the server logs.
        chat_template: Template that replaces the tokenizer's: its text, or a file.
        enable_auto_tool_choice: Let the model call tools.
        tool_call_parser: Name of the parser that finds tool calls in the model's text.
        reasoning_parser: Name of the parser that splits off the model's reasoning.
        return_tokens_as_token_ids: Name tokens `token_id:N` in logprobs.
    """

    host: str | None
    port: int
    api_key: str | None
    uvicorn_log_level: str
    chat_template: str | None
    enable_auto_tool_choice: bool
    tool_call_parser: str | None
    reasoning_parser: str | None
    return_tokens_as_token_ids: bool


class OpenAIServerConfig(TypedDict, total=False):
    """What `model.register(backend, _openai_client_config=...)` takes.

    Attributes:
        log_file: File that the server's log goes to.
        server_args: The server.
        engine_args: The engine behind it.
    """

    log_file: str
    server_args: ServerArgs
    engine_args: EngineArgs
