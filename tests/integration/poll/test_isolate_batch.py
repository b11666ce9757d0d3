"""What is decided about a batch in which bad records are to be isolated."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dropbatch.core.names import JobState
from functions.poll import divide
from functions.poll.divide import (
    LOOK_LATER_SECONDS,
    LOOK_SECONDS,
    MAX_CAUSES,
    MAX_ISOLATION_SUBMITS,
    MAX_PIECES,
    MIN_SCOUT,
    MIXED,
    PROVEN,
    RACE_TRIES,
    SCOUT_SECONDS,
    UNIFORM,
    isolate,
)
from shared.errors import InvariantError
from shared.ledger import Ledger
from shared.ledger.item_keys import batch_key
from shared.models import (
    CANCEL,
    BatchState,
    CostLimit,
    ErrorDetail,
    Isolation,
    JobControl,
    Submission,
)
from shared.retry import MAX_SECONDS_TO_ACCEPTANCE
from tests.support.doubles.ledger_items import JOB, REASON, SPLIT, T

CAUSE = "5006"
NUMBER = "00000003"
LARGE = replace(
    SPLIT,
    records=replace(SPLIT.records, first_id=7, requests=100, sendable=100),
    number=NUMBER,
    created_at=T - 10,
    due_at=T + 90,
    claims=1,
)
SMALL = replace(LARGE, requests=3, sendable=3)
SCOUT = "00000001"
FAILED = replace(SMALL, number=f"{SCOUT}.0", requests=1, sendable=1)
OPEN = replace(JOB, state=JobState.IN_PROGRESS)


class Services(SimpleNamespace):
    """Ledger and store on moto, at a moment that stands still.

    Turns of pieces are a second apart.
    """

    def __init__(self, dynamodb, store):
        super().__init__(ledger=Ledger(dynamodb, "table"), store=store, now=lambda: T, sent=[])
        self.budget = SimpleNamespace(slot_seconds=1.0)
        self.queues = SimpleNamespace(
            send_all=lambda messages, delays: self.sent.append((messages, delays))
        )

    def hold(self, *batches, job=OPEN):
        """Replace the job and its batches."""
        table = self.ledger.client
        for item in table.scan(TableName="table")["Items"]:
            table.delete_item(TableName="table", Key={"pk": item["pk"], "sk": item["sk"]})
        if job:
            self.ledger.create_job(job)
        for batch in batches:
            self.ledger.create_batch(batch)

    def spoil(self, number):
        """Make a batch's item one that cannot be read."""
        self.ledger.client.update_item(
            TableName="table",
            Key=batch_key(JOB.job_id, number),
            UpdateExpression="SET requests = :many",
            ExpressionAttributeValues={":many": {"S": "many"}},
        )

    def decided(self, batch, *others, job=OPEN, **isolation):
        """What becomes of a batch, as its item has it; the job's isolation as given."""
        held = replace(job, isolation=Isolation(**isolation)) if isolation else job
        self.hold(batch, *others, job=held)
        isolate(self, batch)
        return self.ledger.batch(batch.job_id, batch.number)

    @property
    def isolation(self):
        """What the job item keeps, but for how often it was stored."""
        return replace(self.ledger.job(JOB.job_id).isolation, writes=0)


@pytest.fixture
def services(table, monkeypatch):
    """Batches whose split is decided are not split as well."""
    monkeypatch.setattr(divide, "_divide", lambda services, batch: None)
    monkeypatch.setattr(divide, "jittered", lambda seconds: seconds)
    return Services(table, None)


def scout_of(*pieces, **changes):
    """A scout that was divided into these pieces, and they."""
    scout = replace(
        SMALL,
        number=SCOUT,
        state=BatchState.DIVIDED,
        pieces=len(pieces),
        completed_at=T - 60.0,
        work=None,
    )
    return replace(scout, **changes), *(
        replace(one, number=f"{SCOUT}.{at:x}") for at, one in enumerate(pieces)
    )


# ── into how many pieces ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sendable", "pieces"), [(2, 2), (MAX_PIECES, 16), (MAX_PIECES + 1, 16), (100, 16)]
)
def test_batch_is_split_into_at_most_16_pieces(services, sendable, pieces):
    assert services.decided(replace(LARGE, sendable=sendable)).pieces == pieces
    assert services.isolation.submits == pieces


def test_granted_pieces_are_not_counted_again(services):
    assert services.decided(SMALL, submits=MAX_ISOLATION_SUBMITS, granted=(NUMBER,)).pieces == 3
    assert services.isolation == Isolation(submits=MAX_ISOLATION_SUBMITS, granted=(NUMBER,))


def test_batch_without_job_breaks_law(services):
    services.hold(SMALL, job=None)

    with pytest.raises(InvariantError, match=f"batch {JOB.job_id}/{NUMBER} has no job"):
        isolate(services, SMALL)


# ── what is known of a cause ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sendable", "status"),
    [(MIN_SCOUT - 1, PROVEN), (MIN_SCOUT, NUMBER)],
    ids=["too small for a scout", "a scout"],
)
def test_first_large_batch_of_cause_is_scout(services, sendable, status):
    assert services.decided(replace(LARGE, sendable=sendable)).pieces == sendable
    assert services.isolation == Isolation(sendable, (NUMBER,), {CAUSE: status})


def test_mixed_causes_are_split_immediately(services):
    """A cause that some records do not have is split without looking at other batches."""
    services.ledger.batches = None

    assert services.decided(LARGE, causes={CAUSE: MIXED}).pieces == 16
    assert services.isolation.causes == {CAUSE: MIXED}


@pytest.mark.parametrize("known", [MAX_CAUSES - 1, MAX_CAUSES])
def test_job_keeps_so_many_causes_and_no_more(services, known):
    others = {f"other {number}": MIXED for number in range(known)}

    assert services.decided(LARGE, causes=others).pieces == 16
    assert services.isolation.causes == {
        **others,
        **({CAUSE: NUMBER} if known < MAX_CAUSES else {}),
    }


def test_known_cause_changes_however_many_are_kept(services):
    others = {f"other {number}": MIXED for number in range(MAX_CAUSES - 1)}

    services.decided(LARGE, causes={**others, CAUSE: PROVEN})

    assert services.isolation.causes == {**others, CAUSE: NUMBER}


def test_batch_waits_for_scout_without_result(services):
    waiting = replace(FAILED, cause="", isolating=None)

    found = services.decided(LARGE, *scout_of(FAILED, waiting), causes={CAUSE: SCOUT})

    assert (found.pieces, found.ending, found.due_at, found.claims) == (
        0,
        None,
        T + LOOK_LATER_SECONDS,
        0,
    )
    assert services.isolation == Isolation(causes={CAUSE: SCOUT})


def test_sibling_of_scout_rechecks_sooner(services):
    scout, waiting, piece = scout_of(replace(FAILED, cause="", isolating=None), SMALL)

    found = services.decided(piece, scout, waiting, causes={CAUSE: SCOUT})

    assert (found.pieces, found.due_at) == (0, T + LOOK_SECONDS)


def test_batch_is_split_after_answer_to_scout(services):
    answered = replace(FAILED, cause="", isolating=None, state=BatchState.DONE)

    assert services.decided(LARGE, *scout_of(FAILED, answered), causes={CAUSE: SCOUT}).pieces == 16
    assert services.isolation.causes == {CAUSE: MIXED}


def test_batch_ends_if_all_of_scout_failed_alike(services):
    found = services.decided(LARGE, *scout_of(FAILED, FAILED), causes={CAUSE: SCOUT})

    assert found.pieces == 0
    assert found.ending.message == (
        "Not tried alone, because every request of this job that was tried alone failed "
        "for the same cause: the reason"
    )
    assert services.isolation == Isolation(causes={CAUSE: UNIFORM}, untried=(CAUSE,))


def test_grandchildren_of_scout_are_ignored(services):
    deeper = replace(FAILED, number=f"{SCOUT}.0.0", cause="5004")

    services.decided(LARGE, *scout_of(FAILED, FAILED), deeper, causes={CAUSE: SCOUT})

    assert services.isolation.causes == {CAUSE: UNIFORM}


@pytest.mark.parametrize(("number", "is_next"), [(f"{SCOUT}.1", True), ("00000002", False)])
def test_piece_of_failed_scout_is_next_scout(services, number, is_next):
    scout, first, second = scout_of(LARGE, LARGE)
    batch = replace(LARGE, number=number)
    others = [one for one in (scout, first, second) if one.number != number]

    found = services.decided(batch, *others, causes={CAUSE: SCOUT})

    assert bool(found.pieces) is is_next
    assert services.isolation.causes == {CAUSE: number if is_next else SCOUT}


@pytest.mark.parametrize(
    ("ago", "status"),
    [(SCOUT_SECONDS, SCOUT), (SCOUT_SECONDS + 1, MIXED)],
    ids=["an hour", "longer"],
)
def test_pieces_of_scout_are_waited_for_for_hour(services, ago, status):
    waiting = replace(FAILED, cause="", isolating=None)

    services.decided(LARGE, *scout_of(FAILED, waiting, completed_at=T - ago), causes={CAUSE: SCOUT})

    assert services.isolation.causes == {CAUSE: status}


@pytest.mark.parametrize(
    ("lost", "finding"), [(SCOUT, MIXED), (f"{SCOUT}.1", SCOUT)], ids=["the scout", "a piece"]
)
def test_unreadable_scout_stops_no_other_batch(services, lost, finding):
    services.hold(
        LARGE,
        *scout_of(FAILED, FAILED),
        job=replace(OPEN, isolation=Isolation(causes={CAUSE: SCOUT})),
    )
    services.spoil(lost)

    isolate(services, LARGE)

    assert services.isolation.causes == {CAUSE: finding}


# ── grants ────────────────────────────────────────────────────────────────────────────────────────

GRANTED = ("10000000", "10000001", "10000002")


@pytest.fixture
def three_grants(monkeypatch):
    """A job lists three granted batches."""
    monkeypatch.setattr(divide, "MAX_GRANTED", len(GRANTED))


def granted(**changes):
    """Batches that were granted a split; one is as given."""
    held = [replace(SMALL, number=number) for number in GRANTED]
    return [replace(held[0], **changes), *held[1:]]


def test_batch_waits_while_grant_list_is_full(services, three_grants):
    found = services.decided(SMALL, *granted(), granted=GRANTED)

    assert (found.pieces, found.due_at) == (0, T + LOOK_SECONDS)
    assert services.isolation == Isolation(granted=GRANTED)


@pytest.mark.parametrize(
    "changes", [{"pieces": 2}, {"ending": REASON}, {"number": "2"}], ids=["split", "over", "gone"]
)
def test_recorded_splits_leave_grant_list(services, three_grants, changes):
    assert services.decided(SMALL, *granted(**changes), granted=GRANTED).pieces == 3
    assert services.isolation.granted == (*GRANTED[1:], NUMBER)


def test_unreadable_batch_leaves_grant_list(services, three_grants):
    services.hold(SMALL, *granted(), job=replace(OPEN, isolation=Isolation(granted=GRANTED)))
    services.spoil(GRANTED[1])

    isolate(services, SMALL)

    assert services.isolation.granted == (GRANTED[0], GRANTED[2], NUMBER)


def test_list_with_room_is_kept_unread(services, three_grants):
    services.decided(SMALL, *granted(pieces=2)[:-1], granted=GRANTED[:-1])

    assert services.isolation.granted == (*GRANTED[:-1], NUMBER)


@pytest.mark.parametrize("lost", [RACE_TRIES - 1, RACE_TRIES])
def test_lost_race_for_job_is_retried_five_times(services, lost):
    real, races = services.ledger.note_isolation, []

    def note(job, isolation):
        races.append(isolation)
        return None if len(races) <= lost else real(job, isolation)

    services.ledger.note_isolation = note

    found = services.decided(SMALL)

    assert len(races) == RACE_TRIES
    assert (found.pieces, found.due_at) == (
        (3, T + 90) if lost < RACE_TRIES else (0, T + LOOK_SECONDS)
    )


# ── when the records end untried ──────────────────────────────────────────────────────────────────

STOPPED = "because the job was stopped"
LATE = "because it failed more than 7 days after it was to be submitted"
WEEK = MAX_SECONDS_TO_ACCEPTANCE


@pytest.mark.parametrize(
    ("job", "batch", "why"),
    [
        ({"error": REASON}, {}, STOPPED),
        ({"control": JobControl(cancelled=CANCEL)}, {}, "because the job was cancelled"),
        ({"control": JobControl(held_since=T)}, {}, ""),
        (
            {"cost": CostLimit(1, 0, is_reached=True)},
            {},
            "because the job had reached its max_cost",
        ),
        ({}, {"ending_if_unanswered": REASON}, "because the batch may not be submitted again"),
        ({"deadline_at": T}, {}, "because the job's deadline_hours were over"),
        ({"deadline_at": T + 1}, {}, ""),
        ({}, {"created_at": T - WEEK}, ""),
        ({}, {"created_at": T - WEEK - 1}, LATE),
        ({}, {"created_at": T - WEEK - 1, "paused": 1.0}, ""),
        ({}, {"created_at": T - WEEK - 1, "submissions": (Submission("id", 1, T - WEEK),)}, ""),
        ({}, {"submissions": (Submission("id", 1, T - WEEK - 1), Submission("id", 2, T))}, LATE),
        (
            {"isolation": Isolation(causes={CAUSE: UNIFORM})},
            {},
            "because every request of this job that was tried alone failed for the same cause",
        ),
        ({"isolation": Isolation(causes={"5004": UNIFORM})}, {}, ""),
        ({"isolation": Isolation(submits=MAX_ISOLATION_SUBMITS - 3)}, {}, ""),
        (
            {"isolation": Isolation(submits=MAX_ISOLATION_SUBMITS - 2)},
            {},
            "because this job has used up its 2,000 submits for isolating bad requests",
        ),
    ],
)
def test_records_end_untried_when_late_or_in_vain(services, job, batch, why):
    found = services.decided(replace(SMALL, **batch), job=replace(OPEN, **job))

    assert found.ending == (
        ErrorDetail("rejected", f"Not tried alone, {why}: the reason") if why else None
    )
    assert found.pieces == (0 if why else 3)
    assert services.isolation.untried == ((found.cause,) if why else ())


def test_cause_is_listed_before_its_batch_ends(services, monkeypatch):
    """A run that dies in between is made up for: the cause is listed once, and the batch ends."""
    services.hold(SMALL, job=replace(OPEN, error=REASON))
    with monkeypatch.context() as patched:
        patched.setattr(services.ledger, "end_without_answer", Mock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            isolate(services, SMALL)
    assert services.isolation.untried == (SMALL.cause,)

    assert isolate(services, SMALL).ending
    assert services.isolation.untried == (SMALL.cause,)


@pytest.mark.parametrize("known", [MAX_CAUSES - 1, MAX_CAUSES])
def test_job_lists_so_many_untried_causes_and_no_more(services, known):
    others = tuple(f"other {number}" for number in range(known))

    assert services.decided(SMALL, job=replace(OPEN, error=REASON), untried=others).ending
    assert services.isolation.untried == (*others, *([CAUSE] if known < MAX_CAUSES else []))


def test_batch_of_job_that_is_over_ends_nevertheless(services):
    """Its item takes no more causes."""
    services.hold(SMALL, job=replace(OPEN, error=REASON, completed_at=T))
    assert isolate(services, SMALL).ending


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        (replace(REASON, said="a key"), "the reason", "a key"),
        (None, "Workers AI refused this request", ""),
    ],
)
def test_untried_batch_ends_with_api_message(services, reason, message, said):
    batch = replace(SMALL, isolating=reason)
    services.hold(batch, job=replace(OPEN, error=REASON))

    ended = isolate(services, batch)

    assert ended.ending == ErrorDetail(
        "rejected", f"Not tried alone, because the job was stopped: {message}", said
    )
    assert ended == services.ledger.batch(JOB.job_id, NUMBER)
