"""What rows of several programs say together: one table per workload, and the ratios that have targets.

Rows are as measuring.py describes them. Those of step_bench have `weight_slots` too.
"""

import dataclasses

# Of each workload with targets: reprise's milliseconds over the fastest local's, at most, and a peer's over
# reprise's, at least.
TARGETS = {
    "seed4": {"local_two_slots": 1.03, "local_free": 1.02, "resharding": 1.10},
    "mlp4": {"local_two_slots": 1.05, "local_free": 1.03, "resharding": 1.15, "any": 1.15},
    "mlp4s": {"local_two_slots": 1.3, "local_free": 1.2, "resharding": 1.5, "any": 1.6},
    "gpt124": {"local_two_slots": 1.05, "resharding": 1.2, "any": 1.15},
    "llama8": {"local_two_slots": 1.03, "resharding": 1.18, "any": 1.1},
}
LOCAL_TARGET = 1.02  # reprise's local over the peers'

GIB = 2**30


def rows_of_step_bench(figures):
    """Rows of what `step_bench --json` wrote, whose plans have the planner's own wire and accumulation dtypes."""
    rows = []
    for f in figures:
        local = f["mode"] == "local"
        mode = f["mode"]
        if not local:
            mode += f" {f['transports']}, {f['weight_slots']} slots, {f['microbatches_per_graph']} a graph"
        row = {"program": "reprise", "workload": f["workload"], "mode": mode}
        if not f["results_equal"]:
            rows.append(row | {"error": "eager and graph replays left different gradients"})
            continue
        taken = sum(f[f"{kind}_bytes"] for kind in ("requested", "rounding", "recording", "communication"))
        rows.append(row | {
            "ms_median": f["ms_median"], "ms_low": f["ms_low"], "ms_high": f["ms_high"], "teraflops": f["teraflops"],
            "peak_gib": f["requested_bytes"] / GIB, "taken_gib": taken / GIB,
            "wire": "none" if local else "bf16", "accumulate": "none" if local else "f32",
            "weight_slots": f["weight_slots"]})
    return rows


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Of two rows' milliseconds. `value` is None if one of them is missing, `target` if there is none."""

    what: str
    value: float | None
    target: float | None
    at_least: bool

    def passed(self):
        if self.value is None or self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def text(self):
        if self.value is None:
            return f"{self.what}: not measured"
        verdict = {None: "no target", True: "PASS", False: "miss"}[self.passed()]
        target = "" if self.target is None else f"target {'at least' if self.at_least else 'at most'} {self.target:g}: "
        return f"{self.what}: {self.value:.3f}, {target}{verdict}"


def measured(rows, workload):
    return [row for row in rows if row["workload"] == workload and "error" not in row]


def is_local(row):
    return row["wire"] == "none"


def fastest(rows):
    return min(rows, key=lambda row: row["ms_median"], default=None)


def ratios(rows, workload):
    """What has targets. Peers whose gradients do not accumulate in fp32 do less than reprise, and do not count."""
    rows = measured(rows, workload)
    ours = [row for row in rows if row["program"] == "reprise" and not is_local(row)]
    two_slots = fastest([row for row in ours if row["weight_slots"] == 2])
    free = fastest(ours)
    peers = [row for row in rows if row["program"] != "reprise"]
    peer = fastest([row for row in peers if row["accumulate"] == "f32" and not is_local(row)])
    resharding = fastest([row for row in peers if row["accumulate"] == "f32" and not is_local(row)
                          and not row["keeps_weights"]])
    local = fastest([row for row in rows if is_local(row)])
    our_local = fastest([row for row in rows if is_local(row) and row["program"] == "reprise"])
    peer_local = fastest([row for row in peers if is_local(row)])
    targets = TARGETS.get(workload, {})

    def ratio(what, above, below, target, at_least):
        if above is None or below is None:
            return Ratio(what, None, target, at_least)
        names = " / ".join(f"{row['program']} {row['mode']} ({row['ms_median']:.3f} ms)" for row in (above, below))
        return Ratio(f"{what}: {names}", above["ms_median"] / below["ms_median"], target, at_least)

    return [
        ratio("fastest resharding peer / reprise with two slots", resharding, two_slots, targets.get("resharding"),
              at_least=True),
        ratio("fastest peer of any kind / reprise with free slots", peer, free, targets.get("any"), at_least=True),
        ratio("reprise with two slots / fastest local", two_slots, local, targets.get("local_two_slots"),
              at_least=False),
        ratio("reprise with free slots / fastest local", free, local, targets.get("local_free"), at_least=False),
        ratio("reprise's local / the peers' fastest local", our_local, peer_local, LOCAL_TARGET if targets else None,
              at_least=False),
    ]


def table(rows, workload):
    """Text: the workload's rows by milliseconds, then those without figures."""
    good = sorted(measured(rows, workload), key=lambda row: row["ms_median"])
    local = fastest([row for row in good if is_local(row)])
    ours = fastest([row for row in good if row["program"] == "reprise" and not is_local(row)])

    def number(value, digits):
        return "-" if value is None else f"{value:.{digits}f}"

    def over(row, other):
        return None if other is None else row["ms_median"] / other["ms_median"]

    lines = [("program", "mode", "ms", "low", "high", "x local", "x reprise", "wire", "accumulate", "GiB", "taken GiB",
              "TFLOP/s")]
    for row in good:
        lines.append((row["program"], row["mode"], number(row["ms_median"], 3), number(row["ms_low"], 3),
                      number(row["ms_high"], 3), number(over(row, local), 3),
                      number(None if is_local(row) else over(row, ours), 3), row["wire"], row["accumulate"],
                      number(row.get("peak_gib"), 2), number(row.get("taken_gib"), 2),
                      number(row.get("teraflops"), 0)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = (2, 2) + (0,) * 5 + (2, 2) + (0,) * 3  # text is aligned left, numbers right
    text = [f"{workload}:"]
    for line in lines:
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(line, widths, texts)]
        text.append("  " + "  ".join(cells).rstrip())
    for row in rows:
        if row["workload"] == workload and "error" in row:
            text.append(f"  {row['program']} {row['mode']}: not measured: {row['error']}")
    return "\n".join(text)
