"""INF, continued: which name of the endpoint leads to which weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art_conformance.check import check
from art_conformance.failure import Unobservable, expect
from art_conformance.instruments.endpoint_client import (
    endpoint_of,
    expect_refused,
    expect_step,
    latest_name,
)
from art_conformance.instruments.streams import train_past_the_frontend
from art_conformance.verdict import Level

if TYPE_CHECKING:
    from art_conformance.instruments.endpoint_client import Answer, EndpointClient
    from art_conformance.run import Run
    from art_conformance.stage import Stage

_INFERENCE = ("inference",)
# High enough for a single step to be heard in the log-probabilities.
_AUDIBLE_RATE = 1e-3


@check(
    "INF-03",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="checkpoints are served from the first train on, and step 0 is none of them",
)
async def step_0_is_served_after_register(stage: Stage) -> None:
    """Right after `register` of a new model, step 0 answers by its own name and as the latest."""
    run = await stage.new_run()
    async with endpoint_of(run) as endpoint:
        own = await endpoint.ask(run.model.get_inference_name(0), "name@0 of a new model")
        latest = await endpoint.ask(latest_name(run), "the latest name of a new model")
    expect_step(own, 0)
    expect_step(latest, 0)


@check(
    "INF-04",
    clause="T4",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the new checkpoint is not loaded, or the bare name goes on meaning the old one",
)
async def a_train_is_served(stage: Stage) -> None:
    """When a train has ended, the new checkpoint answers by its own name and as the latest."""
    run = await stage.run()
    first = await run.step()
    await run.train()
    async with endpoint_of(run) as endpoint:
        own = await endpoint.ask(run.model.get_inference_name(first + 1), "name@N+1 after a train")
        latest = await endpoint.ask(latest_name(run), "the latest name after a train")
    expect_step(own, first + 1, of=first)
    expect_step(latest, first + 1, of=first)


@check(
    "INF-05",
    clause="names",
    level=Level.INFERENCE,
    needs=("inference", "inference_name"),
    cause="_model_inference_name leaves the step out, or takes the latest for it",
)
async def a_name_is_pinned(stage: Stage) -> None:
    """`get_inference_name()` is pinned: it means the current step, and still does after the next train."""
    run = await stage.run()
    first = await run.step()
    pinned = run.model.get_inference_name()
    async with endpoint_of(run) as endpoint:
        before = await endpoint.ask(pinned, "get_inference_name() at N")
        await run.train()
        after = await endpoint.ask(pinned, "get_inference_name() of N, after the train of N+1")
        now = await endpoint.ask(run.model.get_inference_name(), "get_inference_name() at N+1")
    expect_step(before, first, of=first)
    expect_step(after, first, of=first)
    expect_step(now, first + 1, of=first)


@check(
    "INF-06",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="the step of a name is compared as text, not as a number",
)
async def a_step_may_be_padded(stage: Stage) -> None:
    """A step of a name may be padded with zeros: `name@0007` is `name@7`."""
    run = await stage.run()
    step = await run.step()
    name, at, digits = run.model.get_inference_name(step).rpartition("@")
    if not at or not digits.isdigit():
        raise Unobservable("its names of checkpoints do not end with @ and the step")
    async with endpoint_of(run) as endpoint:
        for width in (4, 8):
            answer = await endpoint.ask(
                f"{name}@{step:0{width}}", f"name@N, padded to {width} digits"
            )
            expect_step(answer, step, of=step)


@check(
    "INF-07",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="an unknown name falls back to the base model or to the latest, or is read too kindly",
)
async def other_names_are_unknown(stage: Stage) -> None:
    """Any other name gets a 404, and never a text: an unknown step, an unknown model, odd spellings."""
    run = await stage.run()
    step = await run.step()
    name = run.model.name
    spellings = {
        run.model.get_inference_name(step + 1000): "name@N+1000",
        f"{name}@-1": "name@-1",
        f"{name}@": "name@",
        f"{name}@latest": "name@latest",
        f"{name}@{step}.0": "name@N.0",
        f"{name}@+{step}": "name@+N",
        f"{name}@ {step}": "name@ N, with a space",
        f"{name}@{step}\n": "name@N, with a line's end",
        f"{name}@0_{step}": "name@0_N",
        f"{name}@{str(step).translate(_WIDE)}": "name@N, in full-width digits",
        f"{name}@{'9' * 30}": "name@ and thirty digits",
        f"{name}@{step}@{step}": "name@N@N",
        f"@{step}": "@N",
        f" {name}": "name, with a space before it",
        name.upper(): "name, in capitals",
        name[:-1]: "name, without its last letter",
        f"../{name}": "../name",
        f"{name}%40{step}": "name%40N",
        "no-such-model": "no-such-model",
    }
    async with endpoint_of(run) as endpoint:
        for spelling, in_words in spellings.items():
            expect_refused(await endpoint.ask(spelling, in_words), of=step)


_WIDE = {ord("0") + digit: 0xFF10 + digit for digit in range(10)}


@check(
    "INF-08",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="only checkpoints are served, or the base model's answers are stamped with a step",
)
async def the_base_model_answers(stage: Stage) -> None:
    """The base model answers by its own name, as no checkpoint: without a `checkpoint_step`."""
    run = await stage.run()
    async with endpoint_of(run) as endpoint:
        answer = await endpoint.ask(run.model.base_model, "the base model's name")
    is_base = answer.status == 200 and answer.text is not None and answer.step is None
    expected = "HTTP 200, a choice with checkpoint_step None"
    expect(is_base, got=answer.told(), expected=expected, sent=answer.sent)


@check(
    "INF-09",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="only one checkpoint is kept loaded, so a new one takes the older ones' place",
)
async def earlier_steps_go_on_answering(stage: Stage) -> None:
    """Earlier steps go on answering, each as itself, until they are deleted."""
    run = await stage.run()
    first = await run.step()
    for _ in range(2):
        await run.train()
    async with endpoint_of(run) as endpoint:
        for step, in_words in ((first, "N"), (first + 1, "N+1"), (first + 2, "N+2")):
            sent = f"name@{in_words} after the train of N+2"
            answer = await endpoint.ask(run.model.get_inference_name(step), sent)
            expect_step(answer, step, of=first)


@check(
    "INF-10",
    clause="D5",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="a deleted checkpoint stays loaded, or its name falls back to other weights",
)
async def deleted_steps_are_unknown(stage: Stage) -> None:
    """Deleted steps get a 404 at once and are listed no more; the latest still answers."""
    run = await stage.run()
    first = await run.step()
    for _ in range(2):
        await run.train()
    await run.backend._delete_checkpoint_files(run.model, [first + 2])
    sent = "after _delete_checkpoint_files(model, [N+2])"
    name = run.model.get_inference_name
    async with endpoint_of(run) as endpoint:
        gone = [
            await endpoint.ask(name(step), f"name@{in_words} {sent}")
            for step, in_words in ((first, "N"), (first + 1, "N+1"))
        ]
        listed = await endpoint.listed()
        latest = await endpoint.ask(latest_name(run), f"the latest name {sent}")
        own = await endpoint.ask(name(first + 2), f"name@N+2 {sent}")
    for answer in gone:
        expect_refused(answer, of=first)
    still = [f"name@{n}" for n, step in (("N", first), ("N+1", first + 1)) if name(step) in listed]
    expect(not still, got=", ".join(still), expected="neither", sent=f"GET /models {sent}")
    expect_step(latest, first + 2, of=first)
    expect_step(own, first + 2, of=first)


@check(
    "INF-20",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="of a name only the step is looked at, or what is no name of this model means its latest",
)
async def models_do_not_answer_for_each_other(stage: Stage) -> None:
    """Of two models neither answers for the other: a foreign name is refused, or answered by its own weights."""
    one = await stage.run()
    if await one.step() == 0:
        await one.train()
    first = await one.step()
    await one.backend._delete_checkpoint_files(one.model, [first])
    other = await stage.new_run()
    async with endpoint_of(other) as endpoint:
        gone = await endpoint.ask(
            one.model.get_inference_name(0), "A@0, which is deleted, at B's address"
        )
        foreign = await endpoint.ask(latest_name(one), "A, at B's address")
    expect_refused(gone, (401, 403, 404))
    _expect_own_weights_or_refused(foreign, first)
    async with endpoint_of(one) as endpoint:
        foreign = await endpoint.ask(latest_name(other), "B, at A's address")
    _expect_own_weights_or_refused(foreign, 0)


def _expect_own_weights_or_refused(answer: Answer, step: int) -> None:
    if answer.status == 200:
        expect_step(answer, step)
    else:
        expect_refused(answer, (401, 403, 404))


@check(
    "INF-24",
    clause="T4",
    level=Level.FULL,
    needs=_INFERENCE,
    cause="the name is new, but the engine goes on with the weights that it has in memory",
)
async def a_name_leads_to_its_weights(stage: Stage) -> None:
    """The weights that answer by a checkpoint's name are that checkpoint's.

    Where the probe sees that a train changed the weights, the log-probabilities of N and N+1 differ.
    """
    run = await stage.run()
    first = await run.step()
    await run.train(learning_rate=_AUDIBLE_RATE)
    _must_differ(await run.weights(first), await run.weights(first + 1))
    async with endpoint_of(run) as endpoint:
        old = await _heard(run, endpoint, first)
        new = await _heard(run, endpoint, first + 1)
    expected = "other log-probabilities than N's"
    expect(new != old, got="the same", expected=expected, sent="a chat completion of name@N+1")


@check(
    "INF-25",
    clause="T8",
    level=Level.FULL,
    needs=_INFERENCE,
    cause="a name that is served already is not loaded again when its checkpoint was replaced",
)
async def a_replaced_checkpoint_is_served_anew(stage: Stage) -> None:
    """When a checkpoint is replaced, its name leads to the new weights."""
    run = await stage.run()
    target = await run.step() + 1
    await run.train()
    before = await run.weights(target)
    async with endpoint_of(run) as endpoint:
        old = await _heard(run, endpoint, target)
        await train_past_the_frontend(run, target, learning_rate=_AUDIBLE_RATE)
        _must_differ(before, await run.weights(target))
        new = await _heard(run, endpoint, target)
    sent = (
        "a chat completion of name@N+1, after N+1 was trained once more, at another learning rate"
    )
    expect(new != old, got="the same", expected="other log-probabilities than before", sent=sent)


@check(
    "INF-26",
    clause="names",
    level=Level.INFERENCE,
    needs=_INFERENCE,
    cause="what is served is kept by the model's name alone, not by (project, name)",
)
async def projects_do_not_share_a_name(stage: Stage) -> None:
    """Models of the same name in two projects are each served with their own weights."""
    one = await stage.run()
    if await one.step() == 0:
        await one.train()
    first = await one.step()
    other = await stage.new_run(one.model.name, project="another-project")
    for run, step, in_words in ((other, 0, "the second, new one"), (one, first, "the first")):
        async with endpoint_of(run) as endpoint:
            answer = await endpoint.ask(latest_name(run), f"the latest name of {in_words}")
            expect_step(answer, step)


async def _heard(run: Run, endpoint: EndpointClient, step: int) -> list[Any]:
    """Return what tells weights from others: the likeliest tokens and their log-probabilities."""
    name = run.model.get_inference_name(step)
    answer = await endpoint.ask(name, "a checkpoint's name, greedily", temperature=0)
    expect_step(answer, step)
    content = (answer.choice.get("logprobs") or {}).get("content") or []
    return [answer.choice.get("token_ids"), *(entry.get("logprob") for entry in content)]


def _must_differ(one: object, other: object) -> None:
    if one == other:
        raise Unobservable("the train left the weights as they were, so nothing can be heard")
