"""Between two ticks, whoever left something due has it looked at."""

import time

import pytest

M2M = "@cf/meta/m2m100-1.2b"


@pytest.mark.parametrize("seconds", [2, 8, 25])
def test_small_job_needs_no_tick(start, api, seconds):
    world = start()
    world.wakes = True
    api.switch(latency=float(seconds))
    world.upload_records("a.jsonl", [{"text": "hello", "target_lang": "es"}], model=M2M)
    began = time.time()

    while not world.manifests():
        assert time.time() - began <= max(2 * seconds, 6)
        world.deliver_all()
        world.pass_time(1)
