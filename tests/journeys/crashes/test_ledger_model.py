"""The ledger as a machine that anything may happen to, in any order.

Hypothesis chooses what, and what must hold holds.

Messages come twice, late or never; ticks overlap; clocks differ; functions die anywhere, or lose an
answer; the API says whatever it says. After each step the laws are looked at in the table itself.
At the end faults cease, the schedule runs, and every record must have its one line.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from contextlib import ExitStack

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import functions.poll.handler
from dropbatch.core.names import FINAL_JOB_STATES
from local.workers_ai import Behaviour, Fault, WorkersAI, expected_result
from shared.aws.attribute_values import read
from shared.models import BatchState, DueKind, ErrorDetail, Job
from tests.support.aws.resources import QUEUES
from tests.support.aws.wire_items import number, submissions
from tests.support.fault_table import note
from tests.support.journeys.deaths import Boundaries, mortal_world

M2M = "@cf/meta/m2m100-1.2b"
OF_STAGING = {"due_at", "work", "claims"}
"""What changes in a job that is over, as its staged objects are deleted."""
FINAL = {BatchState.DONE, BatchState.DIVIDED, *FINAL_JOB_STATES}

FAULTS = {
    "model without capacity": Fault(kind="3040", on="submit"),
    "too many calls": Fault(kind="971", retry_after=30),
    "server error on submit": Fault(kind="json_500", on="submit"),
    "no connection": Fault(kind="refuse"),
    "submit lost after acceptance": Fault(kind="accept_then_reset"),
    "submit taken and answered with a code": Fault(kind="accept_then_error", times=3),
    "submit answered by a proxy": Fault(kind="accept_then_html"),
    "answer at once": Fault(kind="sync_answer"),
    "refused request": Fault(kind="5006", on="submit"),
    "poll answered by a proxy": Fault(kind="html", on="poll"),
    "polls without credits": Fault(kind="2021", on="poll", times=8),
    "poll cut off": Fault(kind="truncated_body"),
    "batch failed after acceptance": Fault(kind="batch_fails"),
    "unknown id": Fault(kind="10404", on="poll", status=404, times=6),
    "late batch": Fault(kind="stuck", seconds=4_000),
    "items missing from the first reply": Fault(kind="missing", first=1),
    "items never sent": Fault(kind="missing"),
    "items repeated": Fault(kind="repeated"),
    "item short of capacity": Fault(kind="item_fails", code=3040, first=1),
    "item that fails": Fault(kind="item_fails", code=5001),
    "token refused": Fault(kind="10000", status=401),
    "model gone": Fault(kind="5035", on="submit"),
}


class Told:
    """What all examples of one run came to, for the table of faults."""

    struck = jobs = records = extra = 0


class Ledger(RuleBasedStateMachine):
    """One Dropbatch with up to three uploads."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = ExitStack()
        self.uploads: dict[str, list[object]] = {}
        self.final: dict[tuple[str, str], dict[str, object]] = {}
        self.struck = 0
        self.cancelled: set[str] = set()
        """Jobs that a user wanted cancelled."""

    @initialize(
        several=st.booleans(),
        policy=st.sampled_from(["resubmit", "resubmit", "fail"]),
        faults=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4),
    )
    def begin(self, several, policy, faults):
        self.api = WorkersAI(
            Behaviour(embedder="hash", latency=8.0, retention=0),
            now=lambda: time.time(),  # noqa: PLW0108 - the clock moves
        )
        self.boundaries = Boundaries()
        self.policy = policy
        self.world = self.kept.enter_context(
            mortal_world(
                self.api,
                self.boundaries,
                MAX_REQUESTS_PER_BATCH=3 if several else 2,
                BATCH_DEADLINE_HOURS=1,
                AMBIGUOUS_SUBMIT=policy,
            )
        )
        self.upload(4)
        self.the_api_says_something(faults, 1)

    # ── what happens ──────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.uploads) < 3)
    @rule(count=st.integers(0, 5))
    def upload(self, count):
        name = f"{len(self.uploads)}.jsonl"
        records: list[object] = [
            {
                "text": f"hello {len(self.uploads)} {number}",
                "target_lang": "es",
                "external_reference": f"r{number}",
            }
            for number in range(count)
        ]
        if count > 3:
            records[1] = "no JSON"
            records[2] = {"text": f"(refused) {len(self.uploads)}", "target_lang": "es"}
        self.uploads[name] = records
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        self.world.upload(name, "".join(line + "\n" for line in lines), model=M2M)

    @rule(queue=st.sampled_from(QUEUES), most=st.integers(1, 4))
    def deliver(self, queue, most):
        self.world.deliver(queue, most=most)

    @rule(queue=st.sampled_from(QUEUES), times=st.integers(2, 3))
    def deliver_twice(self, queue, times):
        self.struck += self.world.deliver(queue, most=1, times=times)

    @rule(queue=st.sampled_from(QUEUES[1:]))
    def lose_a_message(self, queue):
        """Any but S3's own notification: nothing but the upload queue stands for that."""
        url = self.world.queues[queue]
        for message in self.world.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1).get(
            "Messages", []
        ):
            self.world.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            self.struck += 1

    @precondition(lambda self: self.world.delivered)
    @rule(data=st.data())
    def an_old_message_comes_again(self, data):
        queue, body = data.draw(st.sampled_from(self.world.delivered))
        self.world.sqs.send_message(QueueUrl=self.world.queues[queue], MessageBody=body)
        self.struck += 1

    @rule()
    def tick(self):
        self.world.tick()

    @rule(back=st.integers(1, 25), queue=st.sampled_from(["", *QUEUES]))
    def a_function_whose_clock_is_behind(self, back, queue):
        self.world.pass_time(-back)
        began = time.time()
        if queue:
            self.world.deliver(queue, most=2)
        else:
            self.world.tick()
        self.world.pass_time(max(began + back - time.time(), 0))
        self.struck += 1

    @rule(seconds=st.sampled_from([1, 5, 20, 70, 200, 500, 4_000]))
    def time_passes(self, seconds):
        self.world.pass_time(seconds)

    @rule(
        names=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=3),
        nth=st.integers(1, 2),
    )
    def the_api_says_something(self, names, nth):
        """At its next calls, as far as there are any; the jobs are brought as far as these."""
        self.api.inject(*(msgspec.structs.replace(FAULTS[name], nth=nth) for name in names))
        for queue in QUEUES:
            self.world.deliver(queue, most=4)
        self.world.tick()

    @rule(number=st.integers(1, 60), mode=st.sampled_from(["before", "after", "unanswered"]))
    def a_function_will_be_struck(self, number, mode):
        self.struck += bool(self.boundaries.struck)
        self.boundaries.strike(number, mode)

    @precondition(lambda self: self.jobs())
    @rule(data=st.data())
    def other_records_were_refused_in_vain(self, data):
        job = data.draw(st.sampled_from(self.jobs()))
        refused = ErrorDetail("rejected", "Not sent, because 64 records were refused alone.")
        functions.poll.handler.services().ledger.refuse_rest(job, refused, self.world.now())
        self.struck += 1

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), word=st.sampled_from(["pause", "pause", "run", "cancel", "cancel now"]))
    def a_user_commands(self, data, word):
        job = data.draw(st.sampled_from(self.jobs()))
        self.world.control(job.job_id, word)
        if word.startswith("cancel"):
            self.cancelled.add(job.job_id)
        self.struck += 1

    @rule(word=st.sampled_from(["pause", "run"]))
    def an_operator_commands(self, word):
        self.world.control("stack", word)
        self.struck += 1

    # ── what must hold ────────────────────────────────────────────────────────────────────────────

    def items(self):
        return [item for item in self.world.items() if item["pk"]["S"].startswith("JOB#")]

    def jobs(self):
        return [
            read(item, Job)
            for item in self.items()
            if item["sk"]["S"] == "META" and "ttl" not in item
        ]

    @invariant()
    def laws(self):
        if not hasattr(self, "world"):
            return
        leaves = defaultdict(list)
        for item in self.items():
            key = item["pk"]["S"], item["sk"]["S"]
            state = item["state"]["S"]
            open_ = state not in FINAL
            assert open_ != ("ttl" in item), f"law 1: {item}"
            cleans_up = item.get("work", {}).get("S") == DueKind.ROUTINE and key[1] == "META"
            assert ("due_at" in item) == ("work" in item) == (open_ or cleans_up), f"law 1: {item}"
            kept = {name: value for name, value in item.items() if name not in OF_STAGING}
            if key in self.final:
                assert kept == self.final[key], f"a final item changed: {key}"
            elif not open_:
                self.final[key] = kept
            if key[1] != "META" and state != "divided":
                leaves[key[0]].append(item)
            if key[1] != "META":
                assert (state == "done") == ("part" in item), f"a part without its state: {item}"
        self.pieces_tile_what_was_split()
        for batches in leaves.values():
            final = [one for one in batches if one["state"]["S"] == "done"]
            ends = [
                (
                    int(one["records"]["M"]["first_id"]["N"]),
                    int(one["records"]["M"]["requests"]["N"]),
                )
                for one in final
            ]
            for (first, count), (following, _) in zip(sorted(ends), sorted(ends)[1:], strict=False):
                assert first + count <= following, f"law 4: leaves overlap: {sorted(ends)}"
        assert set(self.final) <= {(item["pk"]["S"], item["sk"]["S"]) for item in self.items()}

    def pieces_tile_what_was_split(self):
        """All pieces of a batch exist before it is `divided`.

        And none of a batch whose split was not decided.
        """
        batches = {
            item["pk"]["S"] + item["sk"]["S"]: item
            for item in self.items()
            if item["sk"]["S"] != "META"
        }
        pieces = defaultdict(list)
        for key, item in batches.items():
            if "." in key:
                pieces[key.rpartition(".")[0]].append(
                    (
                        int(item["records"]["M"]["first_id"]["N"]),
                        int(item["records"]["M"]["requests"]["N"]),
                    )
                )
        assert all(0 < len(of) <= int(batches[key]["pieces"]["N"]) for key, of in pieces.items())
        for key, item in batches.items():
            if item["state"]["S"] == "divided":
                first = int(item["records"]["M"]["first_id"]["N"])
                assert len(pieces[key]) == int(item["pieces"]["N"])
                for begin, count in sorted(pieces[key]):
                    assert begin == first, f"pieces do not tile {key}"
                    first += count
                assert first == int(item["records"]["M"]["first_id"]["N"]) + int(
                    item["records"]["M"]["requests"]["N"]
                )

    def teardown(self):
        try:
            if hasattr(self, "world"):
                self.end()
        finally:
            self.kept.close()

    def end(self):
        """No more faults: everything comes to its end by the schedule alone."""
        self.struck += bool(self.boundaries.struck)
        self.boundaries.strike(0, "after")
        self.api.clear_faults()
        # A later command may have taken the place of one to cancel before that was read.
        for name in ("stack", *(job.job_id for job in self.jobs() if not job.cancelled)):
            self.world.control(name, "run")
        self.world.settle(
            minutes=40 * 24 * 60, until=lambda: len(self.world.manifests()) == len(self.uploads)
        )
        self.world.settle(minutes=600)
        self.laws()
        items = self.items()
        assert {item["state"]["S"] for item in items} <= FINAL
        for folder, manifest in self.world.manifests().items():
            records = self.uploads[manifest["source"]["key"].removeprefix("inbox/")]
            self.check_job(folder, manifest, records)
        self.check_bill([item for item in items if item["sk"]["S"] != "META"])
        Told.struck += self.struck + sum(self.api.struck.values())
        Told.jobs += len(self.uploads)
        Told.records += sum(len(records) for records in self.uploads.values())

    def check_job(self, folder, manifest, records):
        lines = self.world.lines(folder=folder)
        if manifest["error"]:
            assert manifest["error"]["code"] == "unknown_model"
            assert FAULTS["model gone"].kind in self.api.struck
            records = records[: len(lines)]  # What was read before.
        if manifest["state"] == "cancelled" and not manifest["read_to_end"]:
            records = records[: len(lines)]
        assert [line["id"] for line in lines] == list(range(len(records)))
        for line, record in zip(lines, records, strict=True):
            if line["success"]:
                assert line["result"] == expected_result(M2M, record)
            elif isinstance(record, str):
                assert line["error"]["code"] == "invalid_json"
            else:
                assert line["error"]["code"] in {
                    "rejected",
                    "inference_failed",
                    "missing_response",
                    "expired",
                    "submit_unknown",
                    *(["cancelled"] if manifest["job_id"] in self.cancelled else []),
                }
        good = sum(line["success"] for line in lines)
        assert manifest["counts"] == {
            "total": len(lines),
            "succeeded": good,
            "failed": len(lines) - good,
        }
        wanted = "cancelled" if manifest["job_id"] in self.cancelled else "completed"
        assert manifest["state"] in ({"failed"} if manifest["error"] else {"completed", wanted})
        leaves = [(one["first_id"], one["requests"]) for one in manifest["batches"]]
        assert [first for first, _ in leaves] == [
            sum(count for _, count in leaves[:at]) for at in range(len(leaves))
        ]
        assert sum(count for _, count in leaves) == len(records)

    def check_bill(self, batches):
        """The API's bill, batch by batch: one each, and what the ledger tells of."""
        owner = {}
        uncertain = 0
        for item in batches:
            uncertain += int(number(item, "unknowable"))
            for one in submissions(item):
                if request_id := one["request_id"]["S"]:
                    assert owner.setdefault(request_id, item["sk"]["S"]) == item["sk"]["S"]
        told = sum(len(submissions(item)) for item in batches)
        billed = {one["request_id"] for one in self.api.accepted}
        assert set(owner) <= billed
        assert told <= len(billed) <= told + uncertain
        Told.extra += len(billed) - len({one["sha256"] for one in self.api.accepted})


def run_model(number: int, **chosen: object) -> None:
    machine = seed(number)(type("Ledger", (Ledger,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            **chosen,
            deadline=None,
            database=None,
            print_blob=False,
            # an example of some steps is readable as it is, and shrinking takes minutes
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_laws_hold_whatever_happens():
    run_model(0, max_examples=3, stateful_step_count=10)


@pytest.mark.faults
@pytest.mark.parametrize("number", range(1, 5))
def test_laws_hold_whatever_happens_for_long(number):
    Told.struck = Told.jobs = Told.records = Told.extra = 0
    run_model(number, max_examples=20, stateful_step_count=30)
    note(
        "all of it at random: the API, messages, clocks, commands, deaths",
        where="moto",
        injected=Told.struck,
        jobs=Told.jobs,
        records=Told.records,
        lost=0,
        twice=0,
        extra_submits=Told.extra,
        why="each in the ledger" if Told.extra else "",
        observed="every invariant held after each step, every record has one line",
    )
