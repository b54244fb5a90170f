"""Where the time of a token goes, as bars of text and as SVG: for scripts/step_budget.py. Imported only."""


def between(ends, digits=0, factor=1.0):
    low, high = (f"{factor * end:,.{digits}f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def segments(results, order):
    """Those families of `order` that are in the results, and the microseconds a token of the longest column."""
    used = [family for family in order if any(family in result["families"] for result in results.values())]
    return used, max(1e6 * result["seconds"] / result["tokens"] for result in results.values())


SHADES = "█▓◍▒░▚▞◓▤▥◆▦▧◇◈◉▨▩○●◐◑□"


def bars(results, order, width=100):
    """Where the time of a token goes, a line a column."""
    used, longest = segments(results, order)
    names = max(map(len, results))
    lines = []
    for name, result in results.items():
        line, position = "", 0.0
        for family in used:
            position += 1e6 * result["families"].get(family, {"seconds": 0})["seconds"] / result["tokens"] / longest * width
            line += SHADES[order.index(family)] * (round(position) - len(line))
        lines.append(f"{name:{names}} |{line} {between(result['range']['seconds'], factor=1e6 / result['tokens'])} us a token")
    lines.append(" " * names + "  " + "  ".join(f"{SHADES[order.index(family)]} {family}" for family in used))
    return "\n".join(lines)


COLOURS = ("#4c78a8", "#9ecae9", "#2f4b7c", "#f58518", "#54a24b", "#88d27a", "#b79a20", "#f2cf5b", "#8c6d31", "#439894", "#83bcb6", "#e45756", "#ff9d98", "#79706e", "#bab0ac", "#1b9e77", "#843c39",
           "#d67195", "#fcbfd2", "#b279a2", "#555555", "#999999", "#e8e8e8")


def picture(results, order):
    """The bars as SVG; as long as the middle of the ranges."""
    used, longest = segments(results, order)
    left, width, high = 200, 900, 46
    rows = [f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13" '
            f'width="{left + width + 150}" height="{high * len(results) + 24 * ((len(used) + 3) // 4) + 30}">']
    for i, (name, result) in enumerate(results.items()):
        x, y = float(left), i * high + 10
        rows.append(f'<text x="{left - 10}" y="{y + 20}" text-anchor="end">{name}</text>')
        for family in used:
            us = 1e6 * result["families"].get(family, {"seconds": 0})["seconds"] / result["tokens"]
            rows.append(f'<rect x="{x:.1f}" y="{y}" width="{us / longest * width:.1f}" height="30" fill="{COLOURS[order.index(family)]}">'
                        f'<title>{family}: {us:.0f} us a token</title></rect>')
            x += us / longest * width
        rows.append(f'<text x="{x + 6:.1f}" y="{y + 20}">{between(result["range"]["seconds"], factor=1e6 / result["tokens"])} us a token</text>')
    for i, family in enumerate(used):
        x, y = left + i % 4 * 230, len(results) * high + 20 + i // 4 * 24
        rows.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[order.index(family)]}"/><text x="{x + 20}" y="{y + 12}">{family}</text>')
    return "\n".join([*rows, "</svg>"]) + "\n"
