"""Charts are well-formed, and keep the highest points of long lines."""

import xml.etree.ElementTree as ET

from tests.simulation.operate.pictures import HEIGHT, MOST_POINTS, WIDTH, line_chart

LINE = "{http://www.w3.org/2000/svg}polyline"


def points(chart):
    """Points of a chart's first line."""
    found = ET.fromstring(chart).find(LINE)
    assert found is not None
    return [tuple(map(float, point.split(","))) for point in found.attrib["points"].split()]


def test_lines_lie_within_the_chart():
    found = points(line_chart("a < b & c", "hours", {"x": [(0.0, 0.0), (1.0, 7.0), (2.0, 3.0)]}))

    assert len(found) == 3
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in found)
    assert found[1][1] < found[2][1] < found[0][1]


def test_peaks_of_long_lines_stay():
    line = [(float(x), 1.0) for x in range(10_000)]
    line[5_005] = 5_005.0, 9.0
    found = points(line_chart("t", "x", {"x": line}))

    assert len(found) <= MOST_POINTS
    assert sum(y == min(y for _, y in found) for _, y in found) == 1


def test_nothing_is_a_chart_too():
    assert ET.fromstring(line_chart("t", "x", {"x": []})).find(LINE) is not None
