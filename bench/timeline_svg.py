#!/usr/bin/env python3
"""Draws what `coterie bench moe --timeline FILE` wrote, or bench/device of a device's processors: for each operator a row for every
thread, over one time axis.

    bench/timeline_svg.py timeline.json [--process N,N] > timeline.svg        (Python's standard library alone)

--process chooses which runs are drawn, by their order in the file from 1; all by default.
"""
import argparse
import html
import json
import math
import re
import sys

COLOURS = {"gate": "#7a5195", "dispatch": "#ef5675", "enter": "#ff764a", "up": "#2f6db5", "down": "#58a4d8", "experts": "#3f86c0", "shared": "#8c8c8c",
           "reply": "#ffa600", "combine": "#e2711d"}
WIDTH, LEFT, RIGHT, TITLE, TOP = 1180, 84, 16, 30, 44
MANY = 64  # rows, which are drawn low then, and named by the first of each rank


def nice(span):
    """A step of 1, 2 or 5 times a power of ten, about a tenth of the span."""
    step = 1e-3
    while span / step > 12:
        step *= 2.5 if f"{step:.0e}".startswith("2") else 2
    return step


class NoTimeline(Exception):
    """Says what is wrong with a file."""


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read(path):
    """The names of its processes by their numbers, and its tasks."""
    try:
        with open(path, encoding="utf-8") as f:
            events = json.load(f)
    except (OSError, ValueError, RecursionError) as error:
        raise NoTimeline(f"is no time line ({type(error).__name__}: {error})")
    events = events.get("traceEvents") if isinstance(events, dict) else None
    if not isinstance(events, list):
        raise NoTimeline("is no time line (it has no list 'traceEvents')")
    names, work = {}, []
    for number, e in enumerate(events):
        wrong = NoTimeline(f"is no time line (event {number} is not one of a process or a task)")
        if not isinstance(e, dict) or not isinstance(e.get("ph"), str):
            raise wrong
        if e["ph"] not in ("M", "X"):
            continue  # of other programs
        args = e.get("args")
        if not isinstance(args, dict) or type(e.get("pid")) is not int:
            raise wrong
        if e["ph"] == "M" and e.get("name", "process_name") == "process_name":
            if not isinstance(args.get("name"), str):
                raise wrong
            names[e["pid"]] = args["name"]
        elif e["ph"] == "X":
            if (type(e.get("tid")) is not int or type(args.get("rank")) is not int or not isinstance(e.get("name"), str) or
                    not all(is_number(e.get(key)) and e[key] >= 0 for key in ("ts", "dur"))):
                raise wrong
            work.append(e)
    return names, work


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--process", default="")
    o = parser.parse_args()
    if not re.fullmatch(r"(\d+(,\d+)*)?", o.process):
        parser.error(f"--process '{o.process}' is no list of numbers, such as 1,2")
    try:
        names, work = read(o.file)
        chosen = sorted({int(p) for p in o.process.split(",")}) if o.process else sorted(names)
        for pid in chosen:
            if pid not in names:
                raise NoTimeline(f"has no process {pid}")
        work = [e for e in work if e["pid"] in chosen]
        end = max((e["ts"] + e["dur"] for e in work), default=0)
        if not end:
            raise NoTimeline("has no task that takes time" + f" of the processes '{o.process}'" * bool(o.process))
    except NoTimeline as error:
        sys.exit(f"timeline_svg: {o.file} {error}")
    scale = (WIDTH - LEFT - RIGHT) / end
    row, gap = (22, 4) if len({(e["pid"], e["tid"]) for e in work}) <= MANY else (5, 1)
    out, y, said = [], TOP, None
    used = {e["name"] for e in work}
    for pid in chosen:
        out.append(f'<text x="{LEFT}" y="{y + TITLE - 10}" font-size="14" font-weight="bold">{html.escape(names[pid])}</text>')
        y += TITLE
        threads = sorted({e["tid"] for e in work if e["pid"] == pid},
                         key=lambda t: next(e["args"]["rank"] for e in work if e["pid"] == pid and e["tid"] == t))
        of = {t: {e["args"]["rank"] for e in work if e["pid"] == pid and e["tid"] == t} for t in threads}
        own = all(len(ranks) == 1 for ranks in of.values())  # nobody helped another rank
        for number, thread in enumerate(threads):
            mine = [e for e in work if e["pid"] == pid and e["tid"] == thread]
            whose = f"rank {min(of[thread])}" if own else f"thread {number}"
            if row > 12 or whose != said:
                out.append(f'<text x="{LEFT - 8}" y="{y + max(row - 7, 5)}" text-anchor="end" font-size="12">{whose}</text>')
            said = whose
            out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{row}" fill="#f0f0f0"/>')
            for e in sorted(mine, key=lambda e: -e["dur"]):  # what lies within is drawn upon
                x, width = LEFT + e["ts"] * scale, max(e["dur"] * scale, 0.3)
                out.append(f'<rect x="{x:.1f}" y="{y + (row > 12)}" width="{width:.2f}" height="{row - 2 * (row > 12)}" '
                           f'fill="{COLOURS.get(e["name"], "#000")}"/>')
            y += row + gap
    step, bottom = nice(end / 1e3), y + 4
    for i in range(int(end / 1e3 / step) + 1):
        x = LEFT + i * step * 1e3 * scale
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#000" stroke-opacity="0.12"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" font-size="12">{i * step:g} ms</text>')
    x = LEFT
    for name in (n for n in COLOURS if n in used):
        out.append(f'<rect x="{x}" y="14" width="14" height="14" fill="{COLOURS[name]}"/>')
        out.append(f'<text x="{x + 20}" y="26" font-size="13">{name}</text>')
        x += 40 + 8 * len(name)
    height = bottom + 26
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">\n'
          f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>')
    print("\n".join(out))
    print("</svg>")


if __name__ == "__main__":
    main()
