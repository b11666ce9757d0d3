"""One turn of split: who takes it, how long it lasts, what it renews and reports.

Where a turn begins and how it ends: test_split_ends.py.
"""

import gzip
from dataclasses import replace
from types import SimpleNamespace

import pytest

import shared.observability
from dropbatch.core.names import JobState
from dropbatch.errors import UploadRefused
from functions.submit import read as module
from functions.submit.read import Turn, TurnOverError
from shared.errors import StorageError
from shared.models import Reading
from shared.services import Invocation
from tests.support.doubles.splitting import SIZES, UPLOAD, Fake, place

NOW = 1_000.0


def slow(fake, seconds):
    """Let each creation of a batch take so long."""
    create = fake.create_batch

    def slow_create(batch):
        fake.clock += seconds
        return create(batch)

    fake.create_batch = slow_create
    return fake


# ── who takes a turn ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [JobState.IN_PROGRESS, JobState.FINALIZING, JobState.COMPLETED])
def test_upload_that_has_been_read_is_not_read_again(state):
    fake = Fake()
    fake.job = replace(fake.job, state=state)

    assert fake.run()

    assert fake.calls == []


def test_whoever_does_not_get_lease_does_nothing():
    fake = Fake()
    fake.lease_job = lambda job, now, until: None

    assert fake.run()

    assert fake.calls == []


def test_whoever_created_job_has_its_lease():
    fake = Fake()

    assert fake.run(leased=True)

    assert "lease" not in fake.calls
    fake.check_whole(SIZES)


@pytest.mark.parametrize(("claims", "seconds"), [(0, 150.0), (19, 150.0), (20, 3_600.0)])
def test_turn_is_leased_while_function_may_run(claims, seconds):
    """Or for an hour, if many turns have failed."""
    fake = Fake()
    fake.job = replace(fake.job, claims=claims)

    fake.run()

    assert fake.given["lease"] == (NOW, NOW + seconds)


@pytest.mark.parametrize(("claims", "wait"), [(0, 2.0), (19, 60.0), (20, None)])
def test_failed_turn_is_repeated_soon_at_first(claims, wait):
    """After many it keeps its lease: messages that come again must not use up its tries."""
    fake = Fake()
    fake.job = replace(fake.job, claims=claims)

    def fails(_job_id):
        raise StorageError("no answer")

    fake.last_batch = fails

    assert not fake.run()

    assert ("retry" in fake.calls) is (wait is not None)
    if wait:
        assert (fake.job.lease_until, fake.job.due_at, fake.job.claims) == (0.0, NOW + wait, claims)


@pytest.mark.parametrize(("claims", "stuck"), [(20, []), (21, ["StuckItems"])])
def test_job_whose_turns_keep_failing_is_counted(monkeypatch, claims, stuck):
    counted = []
    monkeypatch.setattr(shared.observability, "count", counted.append)
    fake = Fake()
    fake.job = replace(fake.job, claims=claims)

    fake.run()

    assert counted == stuck


# ── how long it lasts ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("packing", "remaining", "lasts"),
    [("plain", 150.0, 60.0), ("plain", 89.0, 59.0), ("gzip", 150.0, 120.0)],
    ids=["a minute", "less if there is less", "an archive: all there is"],
)
def test_turn_lasts(monkeypatch, packing, remaining, lasts):
    turns = []
    monkeypatch.setattr(
        module, "Turn", lambda *given, **named: turns.append(Turn(*given, **named)) or turns[-1]
    )
    fake = Fake()
    stored = gzip.compress(UPLOAD) if packing == "gzip" else UPLOAD
    fake.read_version = lambda key, version, etag, start, length: stored[start : start + length]
    fake.job = replace(
        fake.job,
        plan=replace(fake.job.plan, packing=packing),
        upload=replace(fake.job.upload, size=len(stored)),
    )

    assert fake.run(remaining=remaining)

    assert [turn.ends for turn in turns] == [NOW + lasts]


def turn_of(fake, *, ends=NOW, begun=0, at=0, left=0.0):
    return Turn(
        Invocation(fake.services, fake.clock + left), fake.job, None, ends, place(begun), place(at)
    )


@pytest.mark.parametrize(("clock", "cuts"), [(NOW - 1, 3), (NOW, 3), (NOW + 1, 1)])
def test_turn_takes_at_least_one_cut(clock, cuts):
    fake = Fake()
    fake.clock = clock
    turn = turn_of(fake)

    taken = list(turn.cuts(iter([SimpleNamespace(end=place(number)) for number in (1, 2, 3)])))

    assert len(taken) == cuts
    assert turn.place == place(cuts)
    assert turn.finished is (cuts == 3)


def test_turn_over_while_unpacking_is_unfinished():
    def unpacked():
        yield SimpleNamespace(end=place(1))
        raise TurnOverError

    turn = turn_of(Fake())

    assert len(list(turn.cuts(unpacked()))) == 1
    assert not turn.finished


def test_unpacking_stops_at_end_of_turn():
    fake = Fake()
    turn = turn_of(fake, at=1)

    turn.check(skipping=False)
    fake.clock = NOW + 1
    with pytest.raises(TurnOverError):
        turn.check(skipping=False)


@pytest.mark.parametrize(("skipping", "wanted"), [(True, 45.0), (False, 30.0)])
@pytest.mark.parametrize(
    ("claims", "error"), [(0, StorageError), (2, StorageError), (3, UploadRefused)]
)
def test_upload_fails_after_three_turns_without_progress(skipping, wanted, claims, error):
    fake = Fake()
    fake.job = replace(fake.job, claims=claims, plan=replace(fake.job.plan, packing="gzip"))

    turn_of(fake, ends=0.0, begun=7, at=7, left=wanted + 0.1).check(skipping=skipping)
    with pytest.raises(error, match=f"after {place(7).offset} unpacked bytes"):
        turn_of(fake, ends=0.0, begun=7, at=7, left=wanted).check(skipping=skipping)


@pytest.mark.parametrize(
    ("packing", "code"), [("plain", "unknown_format"), ("gzip", "broken_archive")]
)
def test_content_without_batch_is_read_to_limit(monkeypatch, packing, code):
    monkeypatch.setattr("dropbatch.core.read.cut.MAX_BYTES_WITHOUT_BATCH", 10)
    fake = Fake()
    fake.job = replace(fake.job, plan=replace(fake.job.plan, packing=packing))
    turn = turn_of(fake)

    assert list(turn.blocks(iter([b"12345", b"67890"]))) == [b"12345", b"67890"]
    with pytest.raises(UploadRefused) as caught:
        next(turn.blocks(iter([b"1"])))
    assert caught.value.code == code


def test_batch_that_ends_lets_turn_read_on(monkeypatch):
    monkeypatch.setattr("dropbatch.core.read.cut.MAX_BYTES_WITHOUT_BATCH", 10)
    turn = turn_of(Fake())
    list(turn.blocks(iter([b"1234567890"])))

    list(turn.cuts(iter([SimpleNamespace(end=place(1))])))

    assert list(turn.blocks(iter([b"1234567890"]))) == [b"1234567890"]


# ── what it renews and reports ────────────────────────────────────────────────────────────────────


def test_lease_is_renewed_after_first_batch():
    fake = Fake()
    fake.job = replace(fake.job, claims=2)

    assert fake.run()

    assert fake.calls.count("move") == 1
    assert fake.calls.index("move") > fake.calls.index("create")
    assert fake.given["move"] == {
        **dict.fromkeys(["lease_until", "due_at"], NOW + 45),
        "claims": 0,
        "reading": Reading(len(UPLOAD)),
        "wait": None,
    }


@pytest.mark.parametrize(
    ("takes", "renewals"),
    [(5.0, len(SIZES) - 1), (4.9, len(SIZES) // 2)],
    ids=["each", "every second"],
)
def test_lease_is_renewed_every_five_seconds(takes, renewals):
    fake = slow(Fake(), takes)

    assert fake.run()

    assert fake.calls.count("move") == renewals


@pytest.mark.parametrize(("known", "told"), [(0, len(UPLOAD)), (10_000, 10_000)])
def test_progress_never_decreases(known, told):
    fake = Fake()
    fake.job = replace(fake.job, reading=Reading(known))

    assert fake.run()

    assert fake.given["move"]["reading"].bytes_read == told


def test_run_stops_after_losing_lease(monkeypatch):
    said = []
    monkeypatch.setattr(module.logger, "info", lambda words, **_: said.append(words))
    fake = Fake()
    fake.update_leased_job = lambda job, changes: None

    assert fake.run()

    assert list(fake.batches) == ["00000000"]
    assert said == ["lease lost"]
    assert not {"release", "end"} & set(fake.calls)


@pytest.mark.parametrize(
    ("takes", "written"), [(5.0, 5), (4.9, 2)], ids=["after ten seconds", "not after 9.8"]
)
def test_status_is_written_every_ten_seconds(takes, written):
    """It is looked at when the lease is renewed: here after each batch, or each second one."""
    fake = slow(Fake(), takes)

    assert fake.run()

    assert sum(status["splitting"] is not None for status in fake.statuses) == written


@pytest.mark.parametrize(("lease", "is_written"), [(NOW + 45, True), (NOW, False)])
def test_final_status_needs_lease(lease, is_written):
    fake = Fake()
    fake.job = replace(fake.job, lease_until=lease)
    fake.update_leased_job = lambda job, changes: replace(job, lease_until=lease)

    assert fake.run()

    assert [status["counts"]["total"] for status in fake.statuses] == ([23] if is_written else [])


def test_lease_is_given_back_if_turn_cannot_end():
    """The renewed one, if the end of the split cannot be written.

    The job is due at once, and no claim is counted.
    """
    fake = Fake()

    def fail(*_, **__):
        raise StorageError("no answer")

    fake.end_split = fail

    assert not fake.run()

    assert "move" in fake.calls
    assert (fake.job.lease_until, fake.job.claims) == (0.0, 0)
