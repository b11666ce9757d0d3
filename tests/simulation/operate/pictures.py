"""Charts as SVG, without a library."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 34, 40
COLOURS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df", "#cf222e", "#57606a")
MOST_POINTS = 600
"""Points of a line; of more, the largest of each group is drawn."""


def line_chart(title: str, x_title: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    """A chart of some lines, each of points with a shared x axis from its first to its last."""
    right = max((x for line in lines.values() for x, _ in line), default=1.0) or 1.0
    top = _rounded_up(max((y for line in lines.values() for _, y in line), default=1.0))

    def place(x: float, y: float) -> str:
        return f"{LEFT + x / right * (WIDTH - LEFT - RIGHT):.1f},{HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM):.1f}"

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        drawn += [
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share * top:,.4g}</text>',
            (
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" '
                f'text-anchor="middle">{share * right:.3g}</text>'
            ),
        ]
    drawn.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
    )
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(x, y) for x, y in _thinned(line))
        drawn += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            (
                f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 * number + 10}" '
                f'fill="{colour}">{escape(name)}</text>'
            ),
        ]
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _thinned(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(line) // MOST_POINTS) or 1
    return [
        max(line[start : start + step], key=lambda point: point[1])
        for start in range(0, len(line), step)
    ]


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, 20 and so on; 1 for 0."""
    size = 1.0
    while size < value:
        size *= 10
    return next(
        size * share
        for share in (0.1, 0.2, 0.25, 0.5, 1.0)
        if size * share >= value or share == 1.0
    )
