"""A handle of a job: its id, where its results lie, its status and its manifest.

Everything is read from the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from dropbatch.core import names
from dropbatch.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from dropbatch.client.stack import Stack
    from dropbatch.client.uploads import Uploaded


def no_job(path: str, notice: Mapping[str, Any]) -> NotFound:
    """What is wrong with an upload of which S3 tells the stack nothing, as its notice says."""
    why = notice["error"] or notice["waiting_for"]
    return NotFound(f"{path} has no job: {why['code']}: {why['message']}")


@dataclass(unsafe_hash=True, repr=False)
class JobFiles:
    """A job, to be looked at.

    Attributes:
        id: its id. If another upload has it, the job gets its own before anything is read or
            written.
        folder: the prefix of its results; ends in a slash.
        uploaded: its upload, if this program uploaded it: the job may not exist yet.
    """

    stack: Stack = field(compare=False)
    id: str
    folder: str
    uploaded: Uploaded | None = field(default=None, compare=False)
    _state: str = field(default="", init=False, compare=False)

    def __repr__(self) -> str:
        """The id, the path, and the state that was read last."""
        return (
            " ".join(
                filter(
                    None, (f"<{type(self).__name__}", self.id, repr(self.path), self._last_state())
                )
            )
            + ">"
        )

    def _repr_html_(self) -> str:
        """The same, for a notebook."""
        return f"<b>{escape(self.path)}</b> {self._last_state()}<br><code>{self.id}</code>"

    def _last_state(self) -> str:
        return self._state or ("uploaded" if self.uploaded else "")

    @classmethod
    def at(cls, stack: Stack, path: str, job_id: str) -> Self:
        """The job of an upload at a path under `inbox/`."""
        return cls(stack, job_id, names.result(names.INBOX + path, job_id, ""))

    @classmethod
    def of_upload(cls, stack: Stack, uploaded: Uploaded) -> Self:
        """The job of an upload, whether it exists yet or not."""
        job_id = uploaded.job_id(stack.bucket)
        return cls(stack, job_id, names.result(uploaded.key, job_id, ""), uploaded)

    @classmethod
    def recorded(cls, stack: Stack, job_id: str) -> Self:
        """The job with an id.

        Raises:
            NotFound: there is none.
        """
        record = stack.read_json(names.job_record(job_id))
        if record is None:
            raise NotFound(f"There is no job {job_id} in {stack.bucket}.")
        return cls.at(stack, record["path"], job_id)

    @property
    def path(self) -> str:
        """The upload's path under `inbox/`."""
        return self.folder.removeprefix("results/").removesuffix(f"{self.id}/").rstrip("/")

    def status(self) -> dict[str, Any]:
        """The job's status.json; `{"state".

        "uploaded"}` until the stack has created the job of an upload.

        While S3 tells the stack nothing of the upload, it is the notice that shows this: `waiting`,
        later `failed`.

        Raises:
            NotFound: there is no such job.
        """
        if found := self._look():
            return found
        if self.uploaded:
            return self.notice() or {"state": "uploaded"}
        raise NotFound(f"There is no job {self.id} under {self.folder}.")

    def notice(self) -> dict[str, Any] | None:
        """What shows that S3 tells the stack nothing of an upload without a job.

        None if nothing does.
        """
        found = (
            self.stack.read_json(names.denied_notice(self.uploaded.key)) if self.uploaded else None
        )
        is_its = (
            found
            and self.uploaded
            and found["version"] == self.uploaded.version
            and not found["job_id"]
        )
        return found if is_its else None

    def manifest(self) -> dict[str, Any]:
        """The finished job's manifest.

        Raises:
            NotFound: the job does not exist, or is not over.
        """
        self.exists()
        found = self.stack.read_json(f"{self.folder}manifest.json")
        if found is None:
            if (state := self.status()["state"]) in names.FINAL_JOB_STATES:
                raise NotFound(f"Job {self.id} is over ({state}), and its manifest was deleted.")
            raise NotFound(f"Job {self.id} is not over yet. Wait for it with `job.wait()`.")
        self._state = found["state"]
        return found

    def exists(self) -> bool:
        """Whether the stack has created an upload's job.

        Then, and until then, the id is no other upload's.
        """
        return not self.uploaded or bool(self._look())

    def _look(self) -> dict[str, Any] | None:
        """The job's status.json; None if the stack has not created the job, or there is none."""
        for choice in range(names.JOB_ID_CHOICES):
            if choice and self.uploaded:
                self.id = self.uploaded.job_id(self.stack.bucket, choice)
                self.folder = names.result(self.uploaded.key, self.id, "")
            found = self.stack.read_json(f"{self.folder}status.json")
            if found or self.uploaded is None:
                self.uploaded = None
                self._state = (found or {}).get("state", "")
                return found
            taken = self.stack.read_json(names.job_record(self.id))
            if taken is None or (taken["path"], taken["version"]) == (
                self.uploaded.path,
                self.uploaded.version,
            ):
                break
        return None
