"""The handshake at the start of a connection: name, plan, and the step to start from."""

from __future__ import annotations

from tacit.errors import UsageError
from tacit.wire.protocol.connection import Connection, RefusedError
from tacit.wire.protocol.header import VERSION
from tacit.wire.protocol.messages import Hello
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import disagreement


def point(step: int) -> int | None:
    """Return a number of finished steps as a resume point: the last finished one."""
    return None if step == 0 else step - 1


def stop_of(hello: Hello) -> int:
    """Return how many steps a party that says hello has finished."""
    return 0 if hello.resume_point is None else hello.resume_point + 1


def greet(
    connection: Connection, *, name: str, number: int = 0, plan: TrainingPlan, offer: int
) -> int:
    """Say hello to the label party; return the step that it is ready to go on from."""
    hello = Hello(
        versions=(VERSION,),
        party=name,
        plan_digest=plan.digest(),
        resume_point=point(offer),
        number=number,
    )
    connection.send(hello)
    try:
        answer = connection.receive(Hello)
    except RefusedError as error:
        hint = _hint(plan, str(error))
        raise UsageError(f"{error}; the plan here is {plan.described()}{hint}") from error
    problem = disagreement(hello, answer)
    if problem is not None:
        raise connection.wrong(problem)
    certified = connection.transport.peer
    if certified not in (None, answer.party):
        raise connection.wrong(
            f"{certified} calls itself {answer.party}: names are bound to certificates"
        )
    if stop_of(answer) > offer:
        raise connection.wrong(
            f"{answer.party} wants to go on from step {stop_of(answer)}, but "
            f"only {offer} were offered"
        )
    return stop_of(answer)


def _hint(plan: TrainingPlan, refusal: str) -> str:
    """Return what to do where only one of two plans sends no gradient."""
    purposes = {name for name in ("train", "upload") if f'"purpose":"{name}"' in refusal}
    if len(purposes) == 1 and {plan.purpose, *purposes} == {"train", "upload"}:
        return ': write protect = "silent" and width on both sides, or on neither'
    return ""
