"""The table of who may say what, held exhaustively, and the plan that both sides share."""

import dataclasses
import hashlib
import json
import random
from collections import Counter, deque
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError, PeerError, TacitError, UsageError
from tacit.training.cut import Embedding, Gradient
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.forms import Kind
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Hello,
    Predict,
    Records,
    Refuse,
    Upload,
)
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import (
    AHEAD,
    REPEATS,
    TABLE,
    Protocol,
    Role,
    State,
    disagreement,
    table_as_markdown,
)

DIGEST = "cd" * 32
NAMES = {Role.FEATURE: "clinic", Role.LABEL: "bank"}
OTHER = {Role.FEATURE: Role.LABEL, Role.LABEL: Role.FEATURE}
EVERY = list(product(Role, State, Kind))


def hello(role=Role.FEATURE, **fields):
    return Hello(**{"versions": (1,), "party": NAMES[role], "plan_digest": DIGEST, **fields})


def train(step, rows=2):
    return Embedding(step=step, values=torch.ones(rows, 3))


def release(step, rows=2, dtype=torch.float32):
    return Gradient(step=step, values=torch.ones(rows, 3, dtype=dtype))


def fitting(kind, role, step=0, again=False):
    """Return a message of a kind that is right for a speaker when ``step`` is the next one."""
    last = max(step - 1, 0)
    receipt = None if role is Role.LABEL else torch.ones(2, 3)
    return {
        Kind.HELLO: lambda: hello(role),
        Kind.ALIGN: lambda: Align(count=9),
        Kind.TRAIN: lambda: train(last if again else step),
        Kind.RELEASE: lambda: release(last),
        Kind.EVALUATE: lambda: Evaluate(part=4, values=receipt),
        Kind.PREDICT: lambda: Predict(part=4, values=receipt),
        Kind.CHECKPOINT: lambda: CheckpointMessage(step=last),
        Kind.RECORDS: lambda: Records(count=7),
        Kind.UPLOAD: lambda: Upload(part=4, values=receipt),
        Kind.HEARTBEAT: Heartbeat,
        Kind.REFUSE: lambda: Refuse(reason="no"),
        Kind.BYE: Bye,
    }[kind]()


def tell(protocol, speaker, message):
    (protocol.send if speaker == protocol.role else protocol.receive)(message)


def at(role, state):
    """Return a protocol of a role in a state, led there by the shortest talk; one step is done."""
    protocol = Protocol(role)
    for speaker, kind, again in PATHS[state]:
        tell(protocol, speaker, fitting(kind, speaker, protocol.next_step, again))
    if state is State.BROKEN:
        with pytest.raises(PeerError):
            protocol.receive(fitting(Kind.ALIGN, OTHER[role]))
    assert protocol.state is state
    return protocol


def _paths():
    """Find the shortest way to every state, where READY is entered after a first step."""
    feature, label = Role.FEATURE, Role.LABEL
    greeting = [(feature, Kind.HELLO, False), (label, Kind.HELLO, False)]
    ready = [
        *greeting,
        (feature, Kind.ALIGN, False),
        (label, Kind.ALIGN, False),
        (feature, Kind.TRAIN, False),
        (label, Kind.RELEASE, False),
    ]
    again = [*ready, (feature, Kind.TRAIN, True)]
    paths = {
        State.START: [],
        State.GREETED: greeting[:1],
        State.OPEN: greeting,
        State.BROKEN: [],
        State.READY: ready,
        State.RESENDING: again,
    }
    queue = deque([State.READY])
    while queue:
        before = queue.popleft()
        for (role, state, kind), after in TABLE.items():
            if state is before and after not in paths:
                paths[after] = [*paths[before], (role, kind, False)]
                queue.append(after)
    return paths


PATHS = _paths()


# --- the table, exhaustively ---


def test_every_state_can_be_reached():
    assert set(PATHS) == set(State)


@pytest.mark.parametrize("own", Role)
@pytest.mark.parametrize(("speaker", "state", "kind"), EVERY)
def test_the_table_is_what_happens(own, speaker, state, kind):
    protocol = at(own, state)
    message = fitting(kind, speaker, protocol.next_step)
    legal = (speaker, state, kind) in TABLE
    if legal:
        tell(protocol, speaker, message)
        assert protocol.state is TABLE[speaker, state, kind]
        return
    error = UsageError if speaker is own else PeerError
    with pytest.raises(
        TacitError, match=f"{kind.name.lower()} is not allowed in state {state}"
    ) as e:
        tell(protocol, speaker, message)
    assert isinstance(e.value, error)
    assert not (isinstance(e.value, UsageError) and isinstance(e.value, PeerError))
    broken = State.CLOSED if state is State.CLOSED else State.BROKEN
    assert protocol.state is (state if speaker is own else broken)


def test_after_the_end_nothing_is_in_the_table():
    assert not [key for key in TABLE if key[1] is State.CLOSED]


def test_a_heartbeat_is_allowed_from_hello_to_the_end_and_changes_nothing():
    silent = {State.START, State.GREETED, State.BROKEN, State.CLOSED}
    beats = {(r, s): after for (r, s, k), after in TABLE.items() if k is Kind.HEARTBEAT}
    allowed = {(r, s): s for r, s in product(Role, State) if s not in silent}
    waiting = {(Role.LABEL, State.GREETED): State.GREETED}  # for other feature parties
    assert beats == allowed | waiting


def test_refusing_is_possible_in_every_state_but_the_last():
    ends = {(r, s): after for (r, s, k), after in TABLE.items() if k is Kind.REFUSE}
    assert ends == {(r, s): State.CLOSED for r, s in product(Role, State) if s is not State.CLOSED}


def test_only_one_side_may_move_on_in_any_state():
    signals = {Kind.HEARTBEAT, Kind.REFUSE}
    for state in State:
        assert len({r for (r, s, k) in TABLE if s is state and k not in signals}) <= 1


def test_repeats_refine_the_table():
    assert set(REPEATS) <= set(TABLE)


def test_the_markdown_has_a_line_per_entry():
    lines = table_as_markdown().splitlines()
    assert len(lines) == 2 + len(TABLE) + len(REPEATS) + len(AHEAD)
    assert len(set(lines)) == len(lines)
    assert "| ready | feature | Train | training |" in lines
    assert "| ready | feature | Train, the last step again | resending |" in lines
    assert all(Counter(line)["|"] == 5 for line in lines)


# --- the rules beyond the table ---


def both(state=State.READY):
    return at(Role.FEATURE, state), at(Role.LABEL, state)


@pytest.mark.parametrize("step", [2, 5, 2**63 - 1])
def test_a_skipped_step_is_refused_on_both_sides(step):
    feature, label = both()
    with pytest.raises(UsageError, match=f"step {step} skips step 1"):
        feature.send(train(step))
    with pytest.raises(PeerError, match=f"step {step} skips step 1"):
        label.receive(train(step))
    assert (feature.state, label.state) == (State.READY, State.BROKEN)


def test_an_older_step_is_refused_and_the_last_one_is_a_resend():
    label = at(Role.LABEL, State.READY)
    for step in (1, 2):
        label.receive(train(step))
        assert label.state is State.TRAINING
        label.send(release(step))
    for _ in range(2):
        label.receive(train(2))
        assert label.state is State.RESENDING
        label.send(release(2))
    assert label.next_step == 3
    with pytest.raises(PeerError, match="goes back behind step 3"):
        label.receive(train(1))


def test_before_the_first_step_there_is_none_to_repeat():
    label = Protocol("label")
    label.receive(hello(resume_point=4))
    label.send(hello(Role.LABEL, resume_point=4))
    label.receive(Align(count=1))
    label.send(Align(count=1))
    with pytest.raises(PeerError, match="goes back behind step 5"):
        label.receive(train(4))


@pytest.mark.parametrize(
    ("feature", "label", "first"), [(None, None, 0), (3, None, 0), (3, 4, 4), (7, 7, 8), (9, 0, 1)]
)
def test_training_goes_on_after_what_both_have_finished(feature, label, first):
    protocol = Protocol("feature")
    protocol.send(hello(resume_point=feature))
    protocol.receive(hello(Role.LABEL, resume_point=label))
    assert protocol.next_step == first


WRONG = {
    "another step": (State.TRAINING, release(0), "must be of step 1, got step 0"),
    "another shape": (
        State.TRAINING,
        release(1, rows=3),
        r"\(2, 3\) like its embedding, got .*3, 3",
    ),
    "another dtype": (State.TRAINING, release(1, dtype=torch.float64), "like its embedding"),
    "another step again": (State.RESENDING, release(1), "must be of step 0, got step 1"),
    "another part": (State.EVALUATING, Evaluate(part=5), "receipt must be for part 4, got part 5"),
    "values back": (State.PREDICTING, fitting(Kind.PREDICT, Role.FEATURE), "nothing back"),
    "uploaded values back": (
        State.STORING,
        fitting(Kind.UPLOAD, Role.FEATURE),
        "nothing back",
    ),
    "another checkpoint": (State.SAVING, CheckpointMessage(step=1), "of the last step, 0, got 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_refused_on_both_sides(name):
    state, answer, says = WRONG[name]
    feature, label = both(state)
    with pytest.raises(UsageError, match=says):
        label.send(answer)
    with pytest.raises(PeerError, match=says):
        feature.receive(answer)
    assert (feature.state, label.state) == (State.BROKEN, state)


def test_a_heartbeat_does_not_make_forget_what_was_asked():
    feature, label = both(State.TRAINING)
    for protocol, role in product((feature, label), Role):
        tell(protocol, role, Heartbeat())
    label.send(release(1))
    feature.receive(release(1))
    assert feature.state is label.state is not State.BROKEN


def test_an_evaluation_without_embeddings_is_refused():
    with pytest.raises(PeerError, match="carries embeddings from the feature party"):
        at(Role.LABEL, State.READY).receive(Evaluate(part=0))


DISAGREEMENTS = {
    "versions": ({"versions": (2, 3)}, "run the same release"),
    "name": ({"party": "clinic"}, "give them different names"),
    "plan": ({"plan_digest": "ef" * 32}, "the plans differ: digest cdcdcdcdcdcd at clinic"),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_parties_that_disagree_do_not_start(name):
    change, says = DISAGREEMENTS[name]
    theirs = hello(Role.LABEL, **change)
    assert Refuse(reason=disagreement(hello(), theirs))
    feature, label = both(State.GREETED)
    with pytest.raises(PeerError, match=says):
        feature.receive(theirs)
    with pytest.raises(UsageError, match=says):
        label.send(theirs)
    label.send(Refuse(reason="another plan"))
    assert label.state is State.CLOSED


def test_the_longest_disagreement_fits_into_a_refusal():
    many = {"versions": tuple(range(65520, 65535))}
    other = {"versions": tuple(range(60000, 60016))}
    reason = disagreement(hello(party="x" * 64, **many), hello(party="y" * 64, **other))
    assert Refuse(reason=reason)


def test_the_highest_common_version_is_spoken():
    protocol = Protocol("label")
    assert protocol.version is None
    protocol.receive(hello(versions=(1, 2, 4)))
    protocol.send(hello(Role.LABEL, versions=(1, 2, 3)))
    assert protocol.version == 2


def test_an_unknown_role_is_refused():
    with pytest.raises(UsageError, match="one of feature, label, got 'server'"):
        Protocol("server")


# --- steps that overlap ---


def open_pair(depth):
    """Return both ends of a connection that is ready for its first step."""
    ends = Protocol("feature", depth=depth), Protocol("label", depth=depth)
    talk = [
        (Role.FEATURE, hello()),
        (Role.LABEL, hello(Role.LABEL)),
        (Role.FEATURE, Align(count=1)),
        (Role.LABEL, Align(count=1)),
    ]
    for speaker, message in talk:
        for end in ends:
            tell(end, speaker, message)
    return ends


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_more_steps_are_under_way_than_the_plan_lets(depth):
    feature, label = open_pair(depth)
    for step in range(depth):
        feature.send(train(step))
        label.receive(train(step))
    says = "one more: step 0 must have its release first" if depth > 1 else "not allowed in state"
    with pytest.raises(UsageError, match=says):
        feature.send(train(depth))
    label.send(release(0))
    feature.receive(release(0))
    feature.send(train(depth))
    assert feature.state is State.TRAINING
    for step in range(1, depth + 1):
        feature.receive(release(step))
    assert feature.state is State.READY
    feature.send(CheckpointMessage(step=depth))
    _, flooded = open_pair(depth)
    for step in range(depth):
        flooded.receive(train(step))
    with pytest.raises(PeerError, match=says):
        flooded.receive(train(depth))
    assert flooded.state is State.BROKEN


def test_a_label_party_that_reads_late_keeps_the_same_rules():
    feature, label = open_pair(3)
    for step in range(3):
        feature.send(train(step))
    for step in range(3):  # one by one, as they were read
        label.receive(train(step))
        label.send(release(step))
        feature.receive(release(step))
    assert feature.state is label.state is State.READY


def test_releases_come_in_the_order_of_their_steps():
    feature, label = open_pair(2)
    for step in range(2):
        feature.send(train(step))
        label.receive(train(step))
    with pytest.raises(UsageError, match="must be of step 0, got step 1"):
        label.send(release(1))
    with pytest.raises(PeerError, match="must be of step 0, got step 1"):
        feature.receive(release(1))


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT, Kind.EVALUATE, Kind.PREDICT, Kind.BYE])
def test_nothing_but_steps_while_steps_are_under_way(kind):
    feature, label = open_pair(4)
    for step in range(2):
        feature.send(train(step))
        label.receive(train(step))
    label.send(release(0))
    with pytest.raises(PeerError, match=f"{kind.name.lower()} is not allowed in state training"):
        label.receive(fitting(kind, Role.FEATURE, 2))


def test_a_step_again_is_refused_while_others_are_under_way():
    for before in (0, 1):
        _, label = open_pair(4)
        for step in range(2):
            label.receive(train(step))
        with pytest.raises(PeerError, match=f"step {before} goes back behind step 2"):
            label.receive(train(before))
    _, label = open_pair(4)
    for step in range(2):
        label.receive(train(step))
    for step in range(2):
        label.send(release(step))
    label.receive(train(1))
    assert label.state is State.RESENDING
    label.send(release(1))
    label.receive(train(2))
    assert label.state is State.TRAINING


# --- random walks of both roles against each other ---


def moves(protocol):
    """Return every move that a protocol's own side may make now."""
    own = [
        kind for (role, state, kind) in TABLE if (role, state) == (protocol.role, protocol.state)
    ]
    again = [(Kind.TRAIN, True)] if (protocol.role, protocol.state, Kind.TRAIN) in REPEATS else []
    return [(kind, False) for kind in own] + again


class Pair:
    """Both ends of one connection, every message on it encoded and decoded."""

    def __init__(self):
        self.ends = {role: Protocol(role) for role in Role}
        self.trained = 0

    def choices(self):
        """Return every move that one of the two may make now."""
        return [
            (role, *move)
            for role, end in self.ends.items()
            for move in moves(end)
            if self.trained or not (move[1] or move[0] is Kind.CHECKPOINT)  # nothing to repeat yet
        ]

    def go(self, speaker, kind, again):
        """Let one say something to the other and check that they stay together."""
        end, peer = self.ends[speaker], self.ends[OTHER[speaker]]
        message = fitting(kind, speaker, end.next_step, again)
        end.send(message)
        peer.receive(decode(encode(message)))
        self.trained += kind is Kind.TRAIN and not again
        assert end.state is peer.state is not State.BROKEN
        assert end.next_step == peer.next_step == self.trained


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_two_ends_that_keep_the_rules_stay_together(data):
    pair = Pair()
    for _ in range(data.draw(st.integers(1, 40))):
        if choices := pair.choices():
            pair.go(*data.draw(st.sampled_from(choices)))


def test_random_walks_of_both_ends_take_every_entry_of_the_table():
    rng = random.Random(0)  # noqa: S311
    taken, pair = Counter(), Pair()
    for _ in range(12000):
        speaker, kind, again = rng.choice(pair.choices())
        if kind in {Kind.BYE, Kind.REFUSE} and rng.random() < 0.8:
            continue  # or no talk would be long
        taken[speaker, pair.ends[speaker].state, kind, again] += 1
        pair.go(speaker, kind, again)
        if not pair.choices():
            pair = Pair()
    entries = {(*key, False) for key in TABLE if key[1] is not State.BROKEN}
    assert set(taken) == entries | {(*key, True) for key in REPEATS}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_comes_only_the_two_errors_escape(data):
    protocol = Protocol(data.draw(st.sampled_from(list(Role))))
    for _ in range(data.draw(st.integers(1, 30))):
        before, speaker = protocol.state, data.draw(st.sampled_from(list(Role)))
        known = [k for (r, s, k) in TABLE if (r, s) == (speaker, before)] or list(Kind)
        kind = data.draw(st.sampled_from(known) | st.sampled_from(list(Kind)))
        step = protocol.next_step + data.draw(st.sampled_from([0, 0, 0, 1, 2]))
        own = speaker is protocol.role
        wanted = UsageError if own else PeerError
        ended = State.CLOSED if before is State.CLOSED else State.BROKEN
        try:
            tell(protocol, speaker, fitting(kind, speaker, step))
        except wanted:
            assert protocol.state is (before if own else ended)


# --- the plan ---

PLAN = TrainingPlan(epochs=5, batch_size=1024, order_seed=7, cut=(128,), test_percent=20)


def test_a_plan_has_no_field_for_what_one_side_must_keep():
    names = {field.name for field in dataclasses.fields(TrainingPlan)}
    assert names == {
        "epochs",
        "batch_size",
        "order_seed",
        "cut",
        "purpose",
        "matching",
        "test_percent",
        "save_every",
        "depth",
        "wire_bits",
        "wire_version",
        "order_version",
        "plan_version",
        "workers",
        "worker",
        "embed_bits",
        "upload_version",
        "private_head",
    }
    secret = (
        "protect",
        "guard",
        "noise",
        "key",
        "label",
        "mechanism",
        "epsilon",
        "budget",
        "loss",
        "prior",
        "positive",
        "class",
        "objective",
        "secret",
    )
    assert not [n for n in names if any(word in n for word in secret)]


def test_golden_plan_of_version_1():
    assert PLAN.to_json() == (
        '{"batch_size":1024,"cut":[128],"epochs":5,"matching":"private","order_seed":7,"order_version":1,'
        '"plan_version":1,"purpose":"train","save_every":200,"test_percent":20,"wire_bits":32,'
        '"wire_version":2}'
    )
    assert PLAN.digest() == hashlib.sha256(PLAN.to_json().encode()).hexdigest()
    assert PLAN.digest() == "a5f57f17b6e824e6168a5253830f7f569b3a3ee01a0ca736cd1adafb7758b12b"
    assert hello(plan_digest=PLAN.digest())


def test_golden_plan_with_a_depth():
    """A depth of 1 is the plan as it was before; any other is one more field."""
    deep = dataclasses.replace(PLAN, depth=4)
    assert deep.to_json() == PLAN.to_json().replace('"epochs"', '"depth":4,"epochs"')
    assert deep.digest() == "52b089eb98f3e6eafc4b22f001026de274d760deb62be320dda7432adb951443"
    assert '"depth":1,' in PLAN.described()
    assert TrainingPlan.from_json(PLAN.to_json()).depth == 1


@settings(deadline=None)
@given(
    st.builds(
        TrainingPlan,
        epochs=st.integers(1, 999),
        batch_size=st.integers(1, 2**20),
        order_seed=st.integers(0, 2**63 - 1),
        cut=st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(tuple),
        purpose=st.sampled_from(["train", "predict", "upload"]),
        embed_bits=st.sampled_from([32, 8, 4]),
        upload_version=st.integers(1, 1000),
        private_head=st.booleans(),
        save_every=st.integers(1, 2**40),
        depth=st.integers(1, 4),
        wire_bits=st.sampled_from([16, 32]),
    )
)
def test_a_plan_survives_the_round_trip(plan):
    assert TrainingPlan.from_json(plan.to_json()) == plan
    assert (plan.digest() == PLAN.digest()) == (plan == PLAN)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TrainingPlan)])
def test_the_first_field_that_differs_is_named_and_changes_the_digest(field):
    others = {
        "cut": (64, 2),
        "purpose": "predict",
        "matching": "clear",
        "wire_bits": 16,
        "embed_bits": 8,
        "private_head": True,
    }
    plan = dataclasses.replace(PLAN, workers=2) if field == "worker" else PLAN
    value = others[field] if field in others else getattr(plan, field) + 1
    other = dataclasses.replace(plan, **{field: value})
    assert plan.difference(other) == (
        f"the plans differ in {field}: {getattr(plan, field)} here, {value} there"
    )
    assert other.digest() != plan.digest()
    assert plan.difference(dataclasses.replace(plan)) is None


def test_the_one_setting_in_which_an_upload_differs_is_found_by_its_digest():
    plan = dataclasses.replace(PLAN, purpose="upload", cut=(32,))
    for change in ({"embed_bits": 8}, {"cut": (31,)}, {"upload_version": 3}, {"matching": "clear"}):
        other = dataclasses.replace(plan, **change)
        assert plan.named_difference(other.digest()) == plan.difference(other)
    two = dataclasses.replace(plan, embed_bits=8, cut=(31,))
    assert plan.named_difference(two.digest()) is None
    assert PLAN.named_difference(dataclasses.replace(PLAN, wire_bits=16).digest()) is None


def test_the_first_of_several_differences_is_named():
    other = dataclasses.replace(PLAN, save_every=1, batch_size=2)
    assert PLAN.difference(other).startswith("the plans differ in batch_size")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1"),
        ({"epochs": True}, "epochs must be a whole number from 1"),
        ({"save_every": 1.5}, "must be whole|save_every must be a whole number"),
        ({"depth": 0}, "depth must be a whole number from 1"),
        ({"depth": 5}, "depth must be a whole number from 1 to 4, got 5"),
        ({"depth": 1}, "left out where it is 1"),
        ({"depth": True}, "left out where it is 1"),
        ({"purpose": "outsider"}, "purpose is one of"),
        ({"wire_bits": 8}, "wire_bits is one of"),
        ({"test_percent": 91}, "test_percent must be a whole number from 0 to 90"),
        ({"order_seed": -1}, "order_seed must be a whole number from 0"),
        ({"order_seed": 2**63}, "order_seed must be a whole number from 0"),
        ({"cut": []}, "cut must be a tuple of 1 to 3 sizes"),
        ({"cut": [1, 2, 3, 4]}, "cut must be a tuple of 1 to 3 sizes"),
        ({"cut": [0]}, "a size of the cut must be"),
        ({"cut": 128}, "cut must be a list of sizes"),
        ({"protection": "none"}, "'protection' is not one of them"),
    ],
)
def test_a_plan_with_a_wrong_field_is_refused(change, says):
    fields = {**json.loads(PLAN.to_json()), **change}
    with pytest.raises(InputError, match=says):
        TrainingPlan.from_json(json.dumps(fields, sort_keys=True, separators=(",", ":")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "canonical"),
        ("{}", "'batch_size' is missing"),
        ("\ud800", "canonical"),
        (PLAN.to_json() + " ", "canonical"),
    ],
)
def test_a_text_that_is_no_plan_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        TrainingPlan.from_json(text)
