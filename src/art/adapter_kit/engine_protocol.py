"""What the gateway asks of an inference engine, and the values that pass between the two.

The gateway knows names, keys and requests in flight; a `ChatEngine` answers. An engine that knows tokens only is an
`Engine`, and `engine_chat.EngineChat` makes a `ChatEngine` of it. For a server that speaks chats already,
`upstream_chat.UpstreamChat` does the answering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from art.adapter_kit.served_names import Served


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt to continue, `n` times.

    Attributes:
        prompt_token_ids: The rendered prompt; not empty, and shorter than the engine's `max_context`.
        adapter: Id of the adapter that answers, as given to `load_adapter`; None is the base model.
        max_tokens: Most tokens to generate; prompt and completion fit into `max_context`.
        n: Number of independent completions.
        temperature: Divides the logits; 0 takes the most likely token each time.
        top_p: Sample only among the most likely tokens that together reach this probability.
        stop: Strings that end a completion; they are cut from its text.
        seed: Makes sampling repeatable; None samples afresh.
        top_logprobs: How many alternatives to report with each token.
        stream: Whether events are wanted as they happen. Else they may all come at the end.
    """

    prompt_token_ids: tuple[int, ...]
    adapter: str | None
    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int = 0
    stream: bool = False


@dataclass(frozen=True)
class TokenEvent:
    """One generated token.

    Attributes:
        index: Which of the request's `n` completions it belongs to.
        token_id: The token; the end-of-sequence token is reported like any other.
        logprob: Its log-probability: log-softmax of logits / temperature (of the plain logits at
            temperature 0), before `top_p`. In nats.
        top_logprobs: The most likely (token id, logprob) pairs at this position, best first.
        text: What this token adds to the completion's text. Empty while a character is incomplete or may
            yet turn out to be part of a stop string; the final event brings the rest.
        finish_reason: Set on the completion's last event.
    """

    index: int
    token_id: int
    logprob: float
    text: str
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: Literal["stop", "length"] | None = None


class Engine(Protocol):
    """An inference engine that the gateway can put an OpenAI-compatible front on."""

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt and its completion together."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine can answer nothing any more, or None while it works."""
        ...

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        template_options: dict[str, Any],
    ) -> list[int]:
        """Render messages with the model's chat template, ready for the assistant's turn.

        Raises:
            ValueError: The template refuses these messages.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; special tokens give their name."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Generate; closing the generator early cancels the work.

        Raises:
            art.errors.InferenceError: The engine failed, was closed, or has unloaded the adapter.
        """
        ...

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under a new id (letters and digits).

        Raises:
            art.errors.ConfigurationError: The directory holds no adapter that fits the base model.
        """
        ...

    async def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter; requests still running on it fail. An unknown id is ignored."""
        ...


class PreparedChat(Protocol):
    """A chat request that was checked, and waits for the weights that are to answer it."""

    @property
    def is_streamed(self) -> bool:
        """Whether the user asked for server-sent events."""
        ...

    async def completion(self, served: Served) -> dict[str, Any]:
        """The whole answer of some weights, stamped with them.

        Raises:
            art.adapter_kit.api_error.ApiError: The answer is an error.
            art.errors.InferenceError: The engine failed, was closed, or has unloaded the weights.
        """
        ...

    def chunks(self, served: Served) -> AsyncGenerator[dict[str, Any], None]:
        """The same answer in pieces: the bodies of the server-sent events, without the closing `[DONE]`.

        Closing the generator early cancels the work. It raises what `completion` raises; what comes before the first
        piece still gets a status of its own.
        """
        ...


class ChatEngine(Protocol):
    """An inference engine that takes chats as an OpenAI client sends them; what stands behind a gateway."""

    @property
    def failure(self) -> str | None:
        """Why the engine can answer nothing any more, or None while it works."""
        ...

    async def prepare(self, body: dict[str, Any]) -> PreparedChat:
        """Check a request, and do what needs no weights. Its `model` is the gateway's business.

        Raises:
            art.adapter_kit.api_error.ApiError: 400, naming the field at fault.
        """
        ...

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under a new id (letters and digits).

        Raises:
            art.errors.ConfigurationError: The directory holds no adapter that fits the base model.
            art.errors.InferenceError: The engine failed.
        """
        ...

    async def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter; requests still running on it may fail. An unknown id is ignored."""
        ...

    async def sleep(self) -> None:
        """Free what inference takes of the device. The gateway sends no chat until `wake` has returned.

        Raises:
            art.errors.InferenceError: It failed; the engine is awake.
        """
        ...

    async def wake(self) -> None:
        """Be ready to answer again.

        Raises:
            art.errors.InferenceError: It failed; the engine is asleep.
        """
        ...
