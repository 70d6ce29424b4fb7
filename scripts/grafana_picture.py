"""Draws the panels of a Grafana dashboard as SVG, from the answers of a Prometheus. `scripts/test-metrics --picture` calls it."""

import math
import re
from xml.sax.saxutils import escape

WIDTH, MARGIN, GAP = 1100, 12, 8
UNIT_HEIGHT = 23
STEP_SECONDS = 2
UNIT_WIDTH = (WIDTH - 2 * MARGIN) / 24
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
LIGHT = ["#3b73b9", "#3c8a4b", "#c9771a", "#b9483b", "#7b54b0", "#2a8a93", "#a9800f", "#8b5a3c"]
DARK = ["#6ea8e8", "#63b873", "#e8a04c", "#e58578", "#b293e0", "#5cc3cc", "#d0a93a", "#c99a7c"]
STYLE = (
    """
  .page { fill: #f6f8fa; stroke: #d0d7de; }
  .panel { fill: #ffffff; stroke: #d0d7de; }
  .grid { stroke: #d8dee4; }
  .title { fill: #1f2328; font-weight: 600; }
  .text { fill: #1f2328; }
  .note { fill: #57606a; }
  .good { fill: #2f7d3f; }
  .bad { fill: #b9483b; }
"""
    + "".join(f"  .s{number} {{ stroke: {color}; fill: {color}; }}\n" for number, color in enumerate(LIGHT))
    + """  @media (prefers-color-scheme: dark) {
    .page { fill: #010409; stroke: #30363d; }
    .panel { fill: #0d1117; stroke: #30363d; }
    .grid { stroke: #21262d; }
    .title, .text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .good { fill: #63b873; }
    .bad { fill: #e58578; }
"""
    + "".join(f"    .s{number} {{ stroke: {color}; fill: {color}; }}\n" for number, color in enumerate(DARK))
    + "  }\n"
)


def value_text(value, unit):
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
            if abs(value) >= 1.5 * size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s"
    if unit in ("bytes", "Bps"):
        suffix = "/s" if unit == "Bps" else ""
        for name, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}{suffix}"
        return f"{value:.3g} B{suffix}"
    return f"{value:.4g}" + ("/s" if unit == "reqps" else "")


def series_name(template, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()


class Picture:
    """The panels, drawn at their places."""

    def __init__(self):
        self.shapes = []
        self.bottom = 0

    def text(self, x, y, text, style="note", anchor="start", size=11):
        self.shapes.append(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
        )

    def frame(self, panel):
        """Draws the panel's frame and title, and returns the room in it."""
        place = panel["gridPos"]
        x, y = MARGIN + place["x"] * UNIT_WIDTH + GAP / 2, MARGIN + place["y"] * UNIT_HEIGHT
        width, height = place["w"] * UNIT_WIDTH - GAP, place["h"] * UNIT_HEIGHT - GAP
        self.bottom = max(self.bottom, y + height)
        if panel["type"] == "row":
            self.text(x + 2, y + 13, panel["title"].replace("$run", "my-run"), "title", size=13)
            return None
        self.shapes.append(
            f'<rect class="panel" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"/>'
        )
        self.text(x + 10, y + 17, panel["title"], "title", size=12)
        return x + 10, y + 26, width - 20, height - 32

    def stat(self, room, panel, results):
        x, y, width, height = room
        values = [(name, float(found[0]["value"][1])) for name, found in results]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        for number, (name, value) in enumerate(values):
            middle = x + width * (number + 0.5) / len(values)
            is_bad = any(step["value"] is not None and value >= step["value"] for step in steps)
            self.text(middle, y + height / 2 + 10, value_text(value, unit), "bad" if is_bad else "good", "middle", 22)
            if len(values) > 1:
                self.text(middle, y + height / 2 + 26, name, "note", "middle")

    def table(self, room, panel, results):
        x, y, width, _ = room
        units = {
            override["matcher"]["options"]: override["properties"][0]["value"]
            for override in panel["fieldConfig"]["overrides"]
            if override["properties"][0]["id"] == "unit"
        }
        rows, labels = {}, []
        for name, found in results:
            for series in found:
                labels = labels or sorted(series["metric"], reverse=True)
                rows.setdefault(tuple(series["metric"].get(label, "") for label in labels), {})[name] = series["value"][1]
        heads = labels + [name for name, _ in results]
        column = width / len(heads)
        for number, head in enumerate(heads):
            self.text(x + number * column, y + 12, head, "note")
        for line, (key, values) in enumerate(sorted(rows.items())):
            cells = list(key) + [
                value_text(float(values[name]), units[name]) if name in values else "" for name, _ in results
            ]
            for number, cell in enumerate(cells):
                self.text(x + number * column, y + 34 + 19 * line, cell, "text")

    def graph(self, room, panel, results, start, end):
        x, y, width, height = room
        unit = panel["fieldConfig"]["defaults"]["unit"]
        lines = [
            (series_name(name, series["metric"]), [(moment, float(value)) for moment, value in series["values"]])
            for name, found in results
            for series in found
        ]
        finite = [value for _, points in lines for _, value in points if not math.isnan(value)]
        top = max(finite, default=0) * 1.08 or 1
        left, bottom = x + 58, y + height - 34
        right, upper = x + width, y + 6
        for part in range(4):
            level = bottom - (bottom - upper) * part / 3
            self.shapes.append(f'<path class="grid" d="M {left:.1f} {level:.1f} H {right:.1f}"/>')
            self.text(left - 6, level + 4, value_text(top * part / 3, unit), anchor="end", size=10)
        for minute in range(int((end - start) / 60) + 1):
            at = left + (right - left) * 60 * minute / (end - start)
            self.text(at, bottom + 13, f"{minute} min", anchor="middle", size=10)
        legend = x
        for number, (name, points) in enumerate(lines):
            style = f"s{number % len(LIGHT)}"
            path, last = "", None
            for moment, value in points:
                if math.isnan(value):
                    continue
                # Where Prometheus has no value, the line is interrupted.
                command = "L" if last is not None and moment - last <= 2 * STEP_SECONDS else "M"
                across = left + (right - left) * (moment - start) / (end - start)
                path += f"{command}{across:.1f} {bottom - (bottom - upper) * value / top:.1f}"
                last = moment
            self.shapes.append(f'<path class="{style}" style="fill: none" stroke-width="1.6" d="{path}"/>')
            if legend + 7 * len(name) < right:
                self.shapes.append(f'<rect class="{style}" x="{legend:.1f}" y="{y + height - 12:.1f}" width="9" height="4"/>')
                self.text(legend + 13, y + height - 6, name, size=10)
                legend += 26 + 5.6 * len(name)

    def svg(self, description):
        shapes = "\n".join(f"  {shape}" for shape in self.shapes)
        height = self.bottom + MARGIN
        return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" \
width="{WIDTH}" height="{height:.0f}" font-family="{FONT}">
  <!-- Drawn by scripts/test-metrics from a run; do not edit. -->
  <title>{escape(description)}</title>
  <style>{STYLE}  </style>
  <rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8"/>
{shapes}
</svg>
"""


def draw(dashboard, query, query_range, start, end):
    """Returns the dashboard as SVG. The queries take an expression and return Prometheus's result."""
    picture = Picture()
    for panel in dashboard["panels"]:
        room = picture.frame(panel)
        if room is None:
            continue
        ask = query_range if panel["type"] == "timeseries" else query
        results = [(target["legendFormat"], ask(target["expr"])) for target in panel["targets"]]
        if panel["type"] == "timeseries":
            picture.graph(room, panel, results, start, end)
        elif panel["type"] == "stat":
            picture.stat(room, panel, results)
        else:
            picture.table(room, panel, results)
    return picture.svg("The panels of the Grafana dashboard, drawn from a run of four minutes with an outage of one remote")
