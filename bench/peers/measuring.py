"""What the peers' programs share: their flags, the statistics of step_bench, and rows as JSON lines.

A row is one workload in one mode, on rank 0:
  program, workload, mode
  ms_median, ms_low, ms_high   milliseconds per microbatch, forward and backward
  teraflops    matrix products of one microbatch, as step_bench counts them, over ms_median
  peak_gib     largest sum of what the program had asked its allocator for
  taken_gib    bytes taken on the device beyond the CUDA context: allocator, graphs, NCCL
  wire         dtype of gradients on the wire; "none" without communication
  accumulate   dtype of the persistent sum of gradients; "none" if each microbatch replaces the last one's gradient
  keeps_weights  whether weights gathered for forward are still there in backward
  versions     of the libraries, by name
or program, workload, mode and `error`, the reason why there are no figures.
"""

import argparse
import json
import time


def parse_arguments(description, workloads, modes, default_workloads, default_modes, add_flags=None):
    """Flags of a peer's program. `workloads` and `modes` have the known ones, by name."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="modes:\n" + "".join(f"  {n:32} {m.what}\n" for n, m in modes.items()))

    def names_of(known):
        def parse(text):
            names = text.split(",")
            for name in names:
                if name not in known:
                    raise argparse.ArgumentTypeError(f'there is no "{name}"; choose from {", ".join(known)}')
            return names
        return parse

    parser.add_argument("--workloads", type=names_of(workloads), default=default_workloads,
                        help=f"of {', '.join(workloads)} (default {','.join(default_workloads)})")
    parser.add_argument("--modes", type=names_of(modes), default=default_modes,
                        help=f"of those below (default {','.join(default_modes)})")
    parser.add_argument("--batches", type=int, default=10, help="measurements, of which the median is taken")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each measurement, about")
    parser.add_argument("--json", default="", help="file that gets the rows too, a JSON object a line")
    if add_flags is not None:
        add_flags(parser)
    return parser.parse_args()


def measure(step, synchronize, average, batches, seconds):
    """Times step(), which enqueues one microbatch, in steady state, as step_bench does.

    synchronize() waits for all that was enqueued; average(value) gives all ranks the mean of their values, so that they
    run the same number of microbatches.
    """
    tries = 3

    def run(count):
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize()
        return (time.perf_counter() - start) / count

    run(tries)
    count = max(1, int(seconds / average(run(tries))))
    milliseconds = sorted(1e3 * run(count) for _ in range(batches))
    return {"ms_median": milliseconds[batches // 2], "ms_low": milliseconds[0], "ms_high": milliseconds[-1]}


def mlp_flops(units, width, hidden, tokens, input_gradient):
    """Of the matrix products of one microbatch of a stack; hidden 0: one product per unit instead of two.

    Forward, and the gradients of weights and of inputs, that of the first input only if it is kept.
    """
    product = 2.0 * tokens * width * (hidden or width)
    return product * (3 * (2 if hidden else 1) * units - (0 if input_gradient else 1))


def emit(row, path):
    """Prints a row, and adds it to the file if there is one."""
    line = json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    print(line, flush=True)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
