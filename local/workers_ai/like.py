"""The switches with which the local Workers AI behaves as a `probe.json` of `dropbatch doctor --probe` says."""

import msgspec

from local.workers_ai.behaviour import Behaviour, SwitchError


class Probe(msgspec.Struct):
    """What is used of a probe's file: answers named as switches are."""

    like: dict[str, object]
    version: int = 1


def behaviour_like(content: bytes, behaviour: Behaviour) -> Behaviour:
    """A behaviour with the answers of a probe; an answer that no switch can play stays as it was.

    Raises:
        SwitchError: The content is no probe's.
    """
    try:
        probe = msgspec.json.decode(content, type=Probe)
    except msgspec.MsgspecError as error:
        raise SwitchError(f"no probe.json: {error}") from error
    for name, value in probe.like.items():
        try:
            behaviour = behaviour.changed({name: value})
        except SwitchError:
            continue
    return behaviour
