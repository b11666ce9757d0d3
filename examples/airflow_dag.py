"""An Airflow DAG: a file becomes a job, a sensor waits until it is over, its results are loaded."""

import os

from airflow.providers.amazon.aws.sensors.s3 import S3KeySensor
from airflow.sdk import dag, task

import dropbatch


@dag(schedule=None, catchup=False)
def reviews() -> None:
    """Drop a file, wait, load."""

    @task
    def drop() -> str:
        """Submit the file; return the key of its job's manifest, which is written last."""
        job = dropbatch.Client().submit("reviews.jsonl", model="@cf/baai/bge-small-en-v1.5")
        return f"{job.folder}manifest.json"

    @task
    def load(manifest: str) -> None:
        """Download the results; raise an error if the job has failed."""
        job = dropbatch.Client().job(manifest)
        job.wait(check=True)
        job.download("reviews")

    manifest = drop()
    over = S3KeySensor(
        task_id="over",
        bucket_name=os.environ["BUCKET"],
        bucket_key=manifest,
        mode="reschedule",
        poke_interval=60,
        timeout=7 * 86_400,
    )
    over >> load(manifest)


reviews()
