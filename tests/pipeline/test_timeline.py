"""The events of a run: a bounded number of them, with the sums of all operations."""

import pytest
from hypothesis import given, strategies as st

from hdgemm.pipeline.timeline import Event, EventBuffer, Timeline

#: Rows of one run: device, stage, phase.
ROWS = [("host", "load1", "load"), ("host", "mult1", "panel"), ("gpu", "mult1", "update")]
#: An operation: its row, the pause before it, its seconds, its bytes and its flops.
OPERATIONS = st.tuples(
    st.sampled_from(ROWS),
    st.floats(0, 2),
    st.floats(0, 2),
    st.integers(0, 1000),
    st.integers(0, 1000),
)


def events_of(operations):
    """Return the events of each row, one after the other in time."""
    until = dict.fromkeys(ROWS, 0.0)
    for number, (row, pause, seconds, nbytes, flops) in enumerate(operations):
        start = until[row] + pause
        until[row] = start + seconds
        device, stage, phase = row
        yield Event(device, stage, number, 0, 0, start, until[row], nbytes, flops, phase)


def sums(timeline, device, phase):
    events = tuple(e for e in timeline if (e.device, e.phase) == (device, phase))
    return {
        stage: (stats.operations, stats.nbytes, stats.flops, pytest.approx(stats.seconds))
        for stage, stats in Timeline(events, 1.0).stages().items()
    }


@given(st.lists(OPERATIONS, max_size=200), st.integers(1, 32))
def test_joined_events_keep_the_sums_of_each_row(operations, most):
    events, buffer = list(events_of(operations)), EventBuffer(most)
    for event in events:
        buffer.append(event)
    kept = list(buffer)
    assert len(kept) <= max(most, len(ROWS))
    assert [e.start for e in kept] == sorted(e.start for e in kept)
    for device, _, phase in ROWS:
        assert sums(kept, device, phase) == sums(events, device, phase)


def test_few_events_stay_as_they_are():
    events = list(events_of([(ROWS[0], 1.0, 1.0, 8, 0)] * 20))
    buffer = EventBuffer(20)
    for event in events:
        buffer.append(event)
    assert list(buffer) == events


def test_joined_events_have_about_the_same_number_of_operations():
    buffer = EventBuffer(64)
    for event in events_of([(ROWS[1], 0.0, 1.0, 0, 1)] * 5000):
        buffer.append(event)
    joined = [event.operations for event in buffer]
    assert max(joined[:-1]) == 128 >= min(joined[:-1]) >= 64


def test_pauses_of_two_devices_are_counted_once():
    """Each computes half of the time; where both are joined, half of the time is busy."""
    timeline = EventBuffer(2)
    for event in events_of([(row, 1.0, 1.0, 0, 1) for row in ROWS[1:] for _ in range(50)]):
        timeline.append(event)
    assert timeline.timeline(100.0).stages()["mult1"].seconds == pytest.approx(50, rel=0.02)
