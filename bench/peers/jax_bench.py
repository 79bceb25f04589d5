"""Milliseconds per microbatch of fully sharded training in JAX/XLA, on the workloads of step_bench without attention.

  python3 jax_bench.py --ranks=2 --workloads=mlp4 --modes=local,fsdp

One process drives all GPUs. bf16 weights and compute without biases, sums of gradients in fp32. measuring.py says
what a row holds. Modes with other XLA flags run in a process of their own.
"""

import ctypes
import dataclasses
import functools
import os
import subprocess
import sys
import time

import measuring

GIB = 2**30
SCHEDULER = "--xla_gpu_enable_latency_hiding_scheduler=true"
COMMAND_BUFFERS = " --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,COLLECTIVES"


@dataclasses.dataclass(frozen=True)
class Mode:
    """Settings of one measurement."""

    what: str
    sharding: str  # "none": one GPU's work alone; "explicit": collectives written out; "gspmd": left to XLA
    keeps_weights: bool = False
    flags: str = SCHEDULER


MODES = {
    "local": Mode("one GPU's work, no communication, gradients replaced", "none", keeps_weights=True),
    "local-graph": Mode("the same in CUDA graphs", "none", keeps_weights=True, flags=SCHEDULER + COMMAND_BUFFERS),
    "fsdp": Mode("all-gather in forward and again in backward, reduce-scatter", "explicit"),
    "fsdp-keep": Mode("all-gather in forward alone, reduce-scatter", "explicit", keeps_weights=True),
    "fsdp-graph": Mode("fsdp in CUDA graphs, collectives too", "explicit", flags=SCHEDULER + COMMAND_BUFFERS),
    "fsdp-keep-graph": Mode("fsdp-keep in CUDA graphs, collectives too", "explicit", keeps_weights=True,
                            flags=SCHEDULER + COMMAND_BUFFERS),
    "gspmd": Mode("weights sharded, communication left to XLA", "gspmd", keeps_weights=True),
}


@dataclasses.dataclass(frozen=True)
class Stack:
    """Equal layers, one Linear with ReLU (hidden 0) or Linear, GELU, Linear; the loss is the mean of squares."""

    layers: int
    width: int
    hidden: int
    tokens: int  # of each rank
    input_gradient: bool

    def shapes(self):
        return [(self.width, self.hidden), (self.hidden, self.width)] if self.hidden else [(self.width, self.width)]

    def flops(self):
        return measuring.mlp_flops(self.layers, self.width, self.hidden, self.tokens, self.input_gradient)


def seed4():
    return Stack(4, 16384, 0, 8192, True)


def mlp4():
    return Stack(4, 4096, 16384, 4096, False)


def mlp4s():
    return Stack(4, 1024, 4096, 1024, False)


WORKLOADS = {f.__name__: f for f in (seed4, mlp4, mlp4s)}


def build_step(jax, mesh, stack, mode):
    """A function (weights, sums, x) -> (loss, sums, gradient of x or None), compiled when called, and its arguments.

    Without `sums` (None) it returns the gradients instead.
    """
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    sharded, whole = PartitionSpec("ranks"), PartitionSpec()
    explicit = mode.sharding == "explicit"

    def layer(weights, x):
        if explicit:
            weights = [jax.lax.all_gather(w, "ranks", tiled=True) for w in weights]
        if stack.hidden:
            return jax.nn.gelu(x @ weights[0], approximate=True) @ weights[1]
        return jax.nn.relu(x @ weights[0])

    if explicit and not mode.keeps_weights:
        layer = jax.checkpoint(layer, policy=lambda primitive, *_, **__: primitive.name != "all_gather")

    def loss(weights, x):
        for w in weights:
            x = layer(w, x)
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    def step(weights, sums, x):
        with_respect_to = (0, 1) if stack.input_gradient else 0
        value, gradients = jax.value_and_grad(loss, with_respect_to)(weights, x)
        of_weights, of_x = gradients if stack.input_gradient else (gradients, None)
        if sums is None:
            return value, of_weights, of_x
        return value, jax.tree.map(lambda s, g: s + g.astype(jnp.float32), sums, of_weights), of_x

    if explicit:
        # Each rank's loss is the mean over its own tokens, as in the other programs, so one of them is returned.
        step = jax.shard_map(step, mesh=mesh, in_specs=(sharded, sharded, sharded),
                             out_specs=(whole, sharded, sharded), check_vma=False)

    placement = NamedSharding(mesh, sharded)
    tokens = stack.tokens * mesh.size
    draw = jax.jit(lambda key, shape: 0.02 * jax.random.normal(key, shape, jnp.bfloat16), static_argnums=1,
                   out_shardings=placement)
    zeros = jax.jit(lambda shape: jnp.zeros(shape, jnp.float32), static_argnums=0, out_shardings=placement)
    keys = iter(jax.random.split(jax.random.key(0), 2 * stack.layers + 1))
    weights = [[draw(next(keys), shape) for shape in stack.shapes()] for _ in range(stack.layers)]
    sums = None
    if mode.sharding != "none":
        sums = [[zeros(shape) for shape in stack.shapes()] for _ in range(stack.layers)]
    x = draw(next(keys), (tokens, stack.width))
    return jax.jit(step, donate_argnums=1), weights, sums, x


def run_mode(jax, stack, mode, arguments, taken_before):
    from jax.sharding import Mesh

    ranks = 1 if mode.sharding == "none" else arguments.ranks or len(jax.devices())
    if ranks > len(jax.devices()):
        raise ValueError(f"--ranks is {ranks}, but JAX sees {len(jax.devices())} devices")
    mesh = Mesh(jax.devices()[:ranks], ("ranks",))
    step, weights, sums, x = build_step(jax, mesh, stack, mode)
    state = (None, sums, None)

    def run():
        nonlocal state
        state = step(weights, sums and state[1], x)

    row = measuring.measure(run, lambda: jax.block_until_ready(state), lambda value: value, arguments.batches,
                            arguments.seconds)
    memory = jax.devices()[0].memory_stats() or {}
    taken = device_bytes_taken()
    return row | {
        "teraflops": stack.flops() / row["ms_median"] * 1e-9,
        "peak_gib": memory["peak_bytes_in_use"] / GIB if "peak_bytes_in_use" in memory else None,
        "taken_gib": None if None in (taken, taken_before) else (taken - taken_before) / GIB,
        "wire": "none" if mode.sharding == "none" else "bf16",
        "accumulate": "none" if sums is None else "f32",
        "keeps_weights": mode.keeps_weights,
    }


@functools.cache
def driver_context():
    """The CUDA driver's library and the first device's context, kept for the program's life; None without them."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    context = ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        return None
    return cuda, context


def device_bytes_taken():
    """On the first device, by everyone; None where the driver does not say."""
    if driver_context() is None:
        return None
    cuda, context = driver_context()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if cuda.cuCtxPushCurrent_v2(context):
        return None
    failed = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
    return None if failed else total.value - free.value


def run_each_in_its_process(arguments, flags):
    """Once for each set of XLA flags, which XLA reads when it starts."""
    worst = 0
    for group in flags:
        modes = [mode for mode in arguments.modes if MODES[mode].flags == group]
        command = [sys.executable, __file__, f"--modes={','.join(modes)}"]
        command += [f"--workloads={','.join(arguments.workloads)}", f"--ranks={arguments.ranks}"]
        command += [f"--batches={arguments.batches}", f"--seconds={arguments.seconds}", f"--json={arguments.json}"]
        worst = max(worst, abs(subprocess.call(command)))
    return worst


def main():
    arguments = measuring.parse_arguments(
        __doc__, WORKLOADS, MODES, ["mlp4s", "mlp4", "seed4"], ["local", "fsdp", "fsdp-keep"],
        lambda parser: parser.add_argument("--ranks", type=int, default=0, help="GPUs; 0: all"))
    flags = list(dict.fromkeys(MODES[mode].flags for mode in arguments.modes))
    if len(flags) > 1:
        return run_each_in_its_process(arguments, flags)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags[0]}"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # so that what is taken can be seen
    taken_before = device_bytes_taken()
    import jax

    for workload in arguments.workloads:
        for name in arguments.modes:
            start = time.perf_counter()
            row = {"program": "jax", "workload": workload, "mode": name}
            try:
                row |= run_mode(jax, WORKLOADS[workload](), MODES[name], arguments, taken_before)
                row |= {"versions": {"jax": jax.__version__}}
            except Exception as error:  # whatever XLA raises is the reason in the mode's row
                row |= {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
            jax.clear_caches()
            measuring.emit(row | {"run_seconds": time.perf_counter() - start}, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
