"""The benchmark report: one HTML page that needs nothing else, from the results."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from measure import Result

TITLES = {
    "host_cost": "Host cost of a call",
    "kernels": "Kernels",
    "training": "Training step",
    "startup": "Start",
}

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --muted: #5b6570; --line: #d5dae0; --page: #ffffff; --ours: #0b6bcb;
  --good: #1a7f37; --bad: #c4320a; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ed; --muted: #9aa4af; --line: #363d46; --page: #14171b;
  --ours: #6cb2ff; --good: #4cc46a; --bad: #ff8a65; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
p, dt, caption { color: var(--muted); } dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dd { margin: 0; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } td.error { text-align: left; color: var(--bad); }
.good { color: var(--good); } .bad { color: var(--bad); } .scroll { overflow-x: auto; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: var(--muted); }
svg .axis { stroke: var(--line); } svg .even { stroke: var(--muted); }
svg .range { stroke: var(--ours); stroke-width: 2; }
svg .dot { fill: var(--ours); } svg .slow { fill: var(--bad); }
"""


def duration(seconds: float | None) -> str:
    """Returns a time with three significant digits and a unit, or a dash."""
    if seconds is None:
        return "-"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def goal_class(result: Result) -> str:
    """Returns the CSS class that says whether a result meets its goal; empty without one."""
    value = result.ours if result.ratio is None else result.ratio
    if result.goal is None or value is None:
        return ""
    return "good" if value <= result.goal else "bad"


def plot(results: Sequence[Result]) -> str:
    """Returns an SVG with a dot per result at its ratio, on a logarithmic axis, and a line over its quartiles."""
    measured = [result for result in results if result.ratio is not None]
    if not measured:
        return ""
    label_width, width, row_height, top = 330, 640, 16, 24
    extremes = [abs(math.log2(value)) for r in measured for value in (r.low or r.ratio, r.high or r.ratio) if value]
    reach = max(1.0, math.ceil(max(extremes)))

    def x(ratio: float) -> float:
        return label_width + width * (math.log2(ratio) + reach) / (2 * reach)

    height = top + row_height * len(measured) + 4
    parts = [f'<svg viewBox="0 0 {label_width + width + 20} {height}" role="img" aria-label="ratio per case">']
    step = max(1, int(reach) // 4)
    for power in range(-int(reach), int(reach) + 1, step):
        label = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        kind = "even" if power == 0 else "axis"
        parts.append(
            f'<line class="{kind}" x1="{x(2**power):.1f}" x2="{x(2**power):.1f}" y1="{top - 6}" y2="{height}"/>'
        )
        parts.append(f'<text x="{x(2**power):.1f}" y="12" text-anchor="middle">{label}</text>')
    for number, result in enumerate(measured):
        assert result.ratio is not None
        y = top + row_height * (number + 0.5)
        name = html.escape(result.name)
        slow = " slow" if goal_class(result) == "bad" else ""
        parts.append(f'<text x="{label_width - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
        if result.low and result.high:
            ends = f'x1="{x(result.low):.1f}" x2="{x(result.high):.1f}"'
            parts.append(f'<line class="range" {ends} y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<circle class="dot{slow}" cx="{x(result.ratio):.1f}" cy="{y:.1f}" r="4">'
            f"<title>{name}: {result.ratio:.2f}</title></circle>"
        )
    return "\n".join([*parts, "</svg>"])


def table(results: Iterable[Result]) -> str:
    """Returns the HTML table of some results."""
    rows = []
    for result in results:
        name = f"<td>{html.escape(result.name)}</td>"
        if result.error:
            rows.append(f'<tr>{name}<td class="error" colspan="5">{html.escape(result.error)}</td></tr>')
            continue
        ratio = "-" if result.ratio is None else f"{result.ratio:.2f}"
        spread = "-" if result.low is None else f"{result.low:.2f} to {result.high:.2f}"
        goal = "" if result.goal is None else f"≤ {result.goal:g}{' s' if result.ratio is None else ''}"
        cells = [duration(result.ours), duration(result.reference)]
        rows.append(
            f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}"
            f'<td class="{goal_class(result)}">{ratio}</td><td>{spread}</td><td>{goal}</td></tr>'
        )
    head = "<tr><th>case</th><th>ours</th><th>reference</th><th>ratio</th><th>quartiles</th><th>goal</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def families(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Returns the results by family, in the order in which families first appear."""
    order = {result.family: number for number, result in reversed(list(enumerate(results)))}
    ordered = sorted(results, key=lambda result: order[result.family])
    return [(family, list(members)) for family, members in groupby(ordered, key=lambda result: result.family)]


def median_ratio(results: Iterable[Result]) -> float | None:
    """Returns the median of the ratios, None where nothing has one."""
    ratios = [result.ratio for result in results if result.ratio is not None]
    return statistics.median(ratios) if ratios else None


def summary(results: Sequence[Result]) -> str:
    """Returns the table of the families' medians."""
    rows = []
    for group in dict.fromkeys(result.group for result in results):
        for family, members in families([result for result in results if result.group == group]):
            ratio = median_ratio(members)
            failed = sum(bool(member.error) for member in members)
            met = [goal_class(member) for member in members]
            rows.append(
                f"<tr><td>{TITLES.get(group, group)}: {html.escape(family)}</td><td>{len(members)}</td>"
                f"<td>{'-' if ratio is None else f'{ratio:.2f}'}</td>"
                f"<td>{met.count('good')} of {met.count('good') + met.count('bad')}</td>"
                f'<td class="{"bad" if failed else ""}">{failed}</td></tr>'
            )
    head = "<tr><th>family</th><th>cases</th><th>median ratio</th><th>goals met</th><th>did not run</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def page(results: Sequence[Result], environment: Mapping[str, str]) -> str:
    """Returns the whole report as one HTML document.

    Args:
        results: In the order in which they shall appear.
        environment: What was measured where, by label.
    """
    facts = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in environment.items())
    sections = []
    for group in dict.fromkeys(result.group for result in results):
        sections.append(f"<h2>{TITLES.get(group, group)}</h2>")
        for family, members in families([result for result in results if result.group == group]):
            sections.append(f"<h3>{html.escape(family)}</h3>{plot(members)}{table(members)}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>torch-mojo-backend benchmarks</title><style>{STYLE}</style></head><body>
<h1>torch-mojo-backend benchmarks</h1>
<p>Ratios are our time over the reference's, measured in turn in one process: below 1, ours is faster. Dots are medians,
lines reach from the first to the third quartile of the rounds.</p>
<dl>{facts}</dl>
<h2>Summary</h2>{summary(results)}
{"".join(sections)}
</body></html>
"""
