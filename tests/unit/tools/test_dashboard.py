"""Statistics, points and alarms of the dashboard's picture. The drawing itself is checked by eye."""

import pytest

from tools.dashboard import BIN, is_raised, key, points, statistic

ALARM = {
    "Namespace": "Dropbatch",
    "MetricName": "Ticks",
    "Dimensions": [{"Name": "service", "Value": "dropbatch"}],
    "Statistic": "Sum",
    "Period": 300,
    "EvaluationPeriods": 1,
    "Threshold": 1,
    "ComparisonOperator": "LessThanThreshold",
    "TreatMissingData": "missing",
}
TICKS = key("Dropbatch", "Ticks", "dropbatch")


@pytest.mark.parametrize(
    ("wanted", "value"), [("Sum", 10), ("Maximum", 4), ("Minimum", 1), ("Average", 2.5), ("p50", 2), ("p99", 4)]
)
def test_statistics_are_cloudwatchs(wanted, value):
    assert statistic([4, 1, 3, 2], wanted) == value


def test_points_are_bins_in_minutes_since_beginning():
    series = [(999.0, 7.0), (1_000.0, 1.0), (1_000.0 + BIN - 1, 2.0), (1_000.0 + 2 * BIN, 5.0)]

    assert points(series, "Sum", 1_000.0, 2_000.0) == [(0.0, 3.0), (2 * BIN / 60, 5.0)]


def test_alarm_is_raised_by_its_own_threshold():
    ticks = [(1_000.0, 1.0)]

    assert not is_raised(ALARM, {TICKS: ticks}, 1_299.0)
    assert is_raised(ALARM, {TICKS: ticks}, 1_301.0), "no data in its last period"
    assert not is_raised(ALARM | {"TreatMissingData": "notBreaching"}, {}, 1_301.0)
    above = ALARM | {"ComparisonOperator": "GreaterThanThreshold", "Threshold": 0}
    assert is_raised(above, {TICKS: ticks}, 1_299.0)
    assert not is_raised(above | {"EvaluationPeriods": 3, "TreatMissingData": "notBreaching"}, {TICKS: ticks}, 1_299.0)
