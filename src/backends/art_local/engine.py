"""The embedded inference engine: continuous batching for any transformers causal LM with LoRA adapters.

One thread owns the model. Callers post work to it; between two decode steps it takes new work, so that a
short request never waits for a long one. In each round

1. waiting completions join (their prompts are computed, the first token is sampled), as far as rows are free;
2. each group of rows that share an adapter takes one decode step, one forward a group;
3. finished and cancelled rows leave.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, InferenceError
from art_local.decode_batch import DecodeBatch
from art_local.generation import Generation
from art_local.kv_batch import CausalLM
from art_local.lora_adapters import LoraAdapters
from art_local.pretrained import check_supported, end_ids, max_context
from art_local.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from art.adapter_kit.engine_protocol import GenerateRequest, TokenEvent
    from art_local.generation import Row

logger = logging.getLogger(__name__)

# Padded prompt tokens computed in one go: bounds the memory of a join, and the wait of the running rows.
PREFILL_TOKENS = 8192


class LocalEngine:
    """Generates with one model. Implements `art.adapter_kit.engine_protocol.Engine`.

    Args:
        model: A transformers causal LM.
        tokenizer: Its tokenizer, with a chat template.
        max_rows: Most completions that run at once; others wait in order.
        max_loaded_adapters: Adapters kept in memory, beyond those in use.

    Attributes:
        decode_steps: Rounds of decode steps taken so far.

    Raises:
        ConfigurationError: The model or its tokenizer cannot be served.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, max_rows: int = 64, max_loaded_adapters: int = 8
    ) -> None:
        check_supported(model, tokenizer)
        self.decode_steps = 0
        self._max_rows = max_rows
        self._max_context = max_context(model, tokenizer)
        self._tokenizer = tokenizer
        self._template_parameters = set(signature(tokenizer.apply_chat_template).parameters)
        self._vocabulary = Vocabulary(tokenizer)
        self._end_ids = end_ids(model, tokenizer)
        self._lm = CausalLM(model.eval())
        self._adapters = LoraAdapters(model, max_loaded_adapters)
        self._waiting: deque[Row] = deque()
        self._groups: dict[str | None, DecodeBatch] = {}
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopped: str | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    # --- the callers' side

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt and its completion together."""
        return self._max_context

    @property
    def failure(self) -> str | None:
        """Why the engine can answer nothing any more, or None while it works."""
        return self._stopped

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        template_options: dict[str, Any],
    ) -> list[int]:
        """Render messages with the model's chat template, ready for the assistant's turn."""
        from jinja2 import TemplateError

        reserved = template_options.keys() & self._template_parameters
        if reserved:
            raise ValueError(f"{', '.join(sorted(reserved))} is no variable of the template")
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=True,
                **template_options,
            )
            token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        except TemplateError as error:  # the template's own words
            raise ValueError(str(error)) from error
        # A template is a program that runs on the user's data: it may raise anything else too.
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not token_ids:
            raise ValueError("they render to an empty prompt")
        return token_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; special tokens give their name."""
        return self._vocabulary.token_bytes(token_id)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Generate; closing the generator early cancels the work."""
        generation = Generation(request, self._vocabulary, self._end_ids)
        self._post(lambda: self._waiting.extend(generation.rows))
        unfinished = request.n
        try:
            while unfinished:
                for event in await generation.next_events():
                    unfinished -= event.finish_reason is not None
                    yield event
        finally:
            generation.cancelled = True

    def register_adapter(self, adapter: str, path: str) -> None:
        """Make an adapter directory known under an id without reading it yet."""
        self._post(lambda: self._adapters.register(adapter, path))

    async def load_adapter(self, adapter: str, path: str) -> None:
        """Read an adapter directory and make it known under a new id."""

        def load() -> None:
            self._adapters.register(adapter, path)
            try:
                self._adapters.activate(adapter, self._groups)
            except ConfigurationError:
                self._adapters.unregister(adapter)
                raise

        await self._ask(load)

    async def unload_adapter(self, adapter: str) -> None:
        """Forget an adapter; requests still running on it fail. An unknown id is ignored."""

        def unload() -> None:
            self._fail("the adapter was unloaded", lambda row: row.request.adapter == adapter)
            self._groups.pop(adapter, None)
            self._adapters.unregister(adapter)

        await self._ask(unload)

    def close(self) -> None:
        """Stop the thread; requests in flight fail. Safe to call again."""
        self._closing = True
        try:
            self._post(lambda: None)
        except InferenceError:
            return
        self._thread.join()

    def _post(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped is not None:
                raise InferenceError(self._stopped)
            self._inbox.put(work)

    async def _ask(self, work: Callable[[], None]) -> None:
        """Run work on the engine's thread and wait for it."""
        answer: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - handed to the caller, who waits for it
                answer.set_exception(error)
            else:
                answer.set_result(None)

        self._post(run)
        await asyncio.wrap_future(answer)

    # --- the engine's thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_work()
                self._admit()
                self._step()
        finally:
            # Whatever ends this thread, nobody is left waiting.
            with self._lock:
                self._stopped = (
                    "the engine is closed" if self._closing else "the engine's thread has died"
                )
            while not self._inbox.empty():
                self._inbox.get()()
            self._fail(self._stopped, lambda _row: True)

    def _take_work(self) -> None:
        """Run what callers posted; wait for something when there is nothing to generate."""
        idle = not (self._waiting or self._groups)
        while idle or not self._inbox.empty():
            self._inbox.get()()
            idle = False

    def _admit(self) -> None:
        """Let waiting rows join, in order, while rows are free."""
        free = self._max_rows - sum(len(group.rows) for group in self._groups.values())
        joining: dict[str | None, list[Row]] = {}
        for row in self._take_waiting(free):
            joining.setdefault(row.request.adapter, []).append(row)
        for adapter, rows in joining.items():
            with self._failing(adapter, rows):
                self._adapters.activate(adapter, self._groups)
                group = self._groups.setdefault(adapter, DecodeBatch(self._lm))
                group.join(rows)
            self._settle(adapter, rows)

    def _take_waiting(self, free: int) -> list[Row]:
        taken: list[Row] = []
        prompts: set[tuple[int, ...]] = set()
        while self._waiting and len(taken) < free:
            row = self._waiting[0]
            prompts.add(row.request.prompt_token_ids)
            if taken and len(prompts) * max(map(len, prompts)) > PREFILL_TOKENS:
                break
            self._waiting.popleft()
            if not row.generation.cancelled:
                taken.append(row)
        return taken

    def _step(self) -> None:
        """One decode step of every group."""
        if self._groups:
            self.decode_steps += 1
        for adapter, group in list(self._groups.items()):
            rows = list(group.rows)
            with self._failing(adapter, rows):
                self._adapters.activate(adapter, self._groups)
                group.step()
            self._settle(adapter, rows)

    def _settle(self, adapter: str | None, rows: list[Row]) -> None:
        """After a forward: hand events over, let finished rows leave."""
        for row in rows:
            row.generation.flush()
        group = self._groups.get(adapter)
        if group is not None:
            group.drop_finished()
            if not group.rows:
                del self._groups[adapter]

    @contextmanager
    def _failing(self, adapter: str | None, rows: list[Row]) -> Iterator[None]:
        """Fail a group's requests when its forward raises; the engine and the other groups go on."""
        try:
            yield
        # Whatever a model raises must reach the callers, who would wait for ever.
        except Exception as error:
            logger.exception("a step of the inference engine failed")
            group = self._groups.pop(adapter, None)
            for row in [*rows, *(group.rows if group is not None else [])]:
                if not row.generation.cancelled:
                    row.generation.fail(f"{type(error).__name__}: {error}")

    def _fail(self, message: str, matches: Callable[[Row], bool]) -> None:
        """Fail the requests, waiting or running, that match."""
        running = [row for group in self._groups.values() for row in group.rows]
        for row in [*self._waiting, *running]:
            if matches(row) and not row.generation.cancelled:
                row.generation.fail(message)
