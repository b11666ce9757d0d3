"""The switches that make the local Workers AI behave as a `probe.json` of `dropbatch doctor --probe` describes."""

import msgspec

from local.workers_ai.behaviour import Behaviour, SwitchError


class Probe(msgspec.Struct):
    """The part of a probe's file that is used: answers by switch name."""

    like: dict[str, object]
    version: int = 1


def behaviour_like(content: bytes, behaviour: Behaviour) -> Behaviour:
    """A behaviour with the answers of a probe; an answer that fits no switch is ignored.

    Raises:
        SwitchError: The content is not a probe's.
    """
    try:
        probe = msgspec.json.decode(content, type=Probe)
    except msgspec.MsgspecError as error:
        raise SwitchError(f"not a probe.json: {error}") from error
    for name, value in probe.like.items():
        try:
            behaviour = behaviour.changed({name: value})
        except SwitchError:
            continue
    return behaviour
